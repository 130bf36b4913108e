"""The two lines every semi-supervised result lies between, under the same protocol."""

from fl2fast.methods.method import ClientPart, Method, ServerPart
from fl2fast.methods.parts import ce_grads, num_rows, true_labels


def supervised() -> Method:
    """The server trains on its labels; no client takes part: the lower bound.

    Reference: none; it is every method here without its clients.
    """
    return Method(ServerPart(ce_grads), client=None)


def fedavg() -> Method:
    """FedAvg (McMahan et al., 2017) with every client's rows labelled: the upper bound.

    Clients train on weak views with cross-entropy and weigh as many rows as they hold; server
    fine-tuning, momentum and static batch norm stay as in the other methods.

    Reference: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, Communication-Efficient Learning
    of Deep Networks from Decentralized Data, AISTATS 2017.
    """
    client = ClientPart(
        true_labels, ce_grads, num_rows, views=("weak",), predicts=False, sees_truth=True
    )
    return Method(ServerPart(ce_grads), client)
