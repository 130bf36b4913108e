"""fl2fast: federated semi-supervised learning with all clients, and all seeds, trained at once.

>>> from fl2fast import experiment
>>> experiment(labels=40, rounds=5).method
'flfl'
"""

from fl2fast.errors import UsageError as UsageError
from fl2fast.experiment import Experiment as Experiment
from fl2fast.experiment import experiment as experiment
from fl2fast.simulate import build_world as build_world
from fl2fast.simulate import simulate as simulate
from fl2fast.train import resume as resume
from fl2fast.train import train as train
