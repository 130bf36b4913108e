from fl2fast.cli.main import main

main()
