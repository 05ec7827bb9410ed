"""What each method has to do at the least, written down with nothing around it: what its adapter is measured against.

Each function takes an untouched model and a batch, and returns a step to be timed.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn


def entropy(logits):
    log = logits.log_softmax(1)
    return -(log.exp() * log).sum(1)


def trainable(model, chosen):
    """A copy of a model of which only the chosen parameters are trained."""
    model = copy.deepcopy(model).requires_grad_(False)
    params = [
        parameter.requires_grad_()
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if chosen(module, name)
    ]
    return model, params


def norms(module, name):
    return isinstance(module, nn.LayerNorm)


def weights_and_biases(module, name):
    return name in ("weight", "bias")


def forwards(model, images, count):
    """So many plain forward passes: what FOA has to do."""

    def step():
        with torch.inference_mode():
            for _ in range(count):
                model(images)

    return step


def training(optimizer, loss, times=1):
    """Forward, backward and an optimizer step, so many times."""

    def step():
        for _ in range(times):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def tent(model, images):
    """On the norm layers."""
    model, params = trainable(model, norms)
    return training(torch.optim.Adam(params, lr=2.5e-4), lambda: entropy(model(images)).mean())


def selective(model, images):
    """With SGD on the norm layers: what ETA, EATA and RDumb have to do."""
    model, params = trainable(model, norms)
    return training(torch.optim.SGD(params, lr=1e-3, momentum=0.9), lambda: entropy(model(images)).mean())


def first_blocks(model):
    """A copy of a model of which the norm layers of the first nine blocks are trained."""
    model, params = trainable(model, lambda module, name: False)
    for block in model.blocks[:9]:
        params += [parameter.requires_grad_() for norm in (block.norm1, block.norm2) for parameter in norm.parameters()]
    return model, params


def sar(model, images):
    """Twice."""
    model, params = first_blocks(model)
    return training(torch.optim.SGD(params, lr=1e-3, momentum=0.9), lambda: entropy(model(images)).mean(), times=2)


def deyo(model, images):
    """As SAR trains, but once, and a forward pass of the destroyed images, which are there already."""
    model, params = first_blocks(model)
    destroyed = images.flip(3)

    def loss():
        entropies = entropy(model(images))
        with torch.no_grad():
            model(destroyed)
        return entropies.mean()

    return training(torch.optim.SGD(params, lr=1e-3, momentum=0.9), loss)


def roid(model, images):
    """With two forwards, and the backward of both, on the norm layers; the view is there already."""
    model, params = trainable(model, norms)
    view = images.flip(3)

    def loss():
        first, second = model(images), model(view)
        return (entropy(first) - (first.softmax(1) * second.log_softmax(1)).sum(1)).mean()

    return training(torch.optim.SGD(params, lr=2.5e-4, momentum=0.9), loss)


def rotta(model, images):
    """Two forwards of the teacher; forward, backward and step of the student's norm layers, on a view."""
    student, params = trainable(model, norms)
    view = images.flip(3)

    def loss():
        with torch.no_grad():
            model(images)
            taught = model(images).softmax(1)
        return (-(taught * student(view).log_softmax(1)).sum(1)).mean()

    return training(torch.optim.Adam(params, lr=1e-3), loss)


def cotta(model, images, views=1):
    """A pass of the anchor and some of the teacher; forward, backward and step of the student; teacher follows.

    The views are there already.
    """
    student, params = trainable(model, weights_and_biases)
    teacher, averages = trainable(model, weights_and_biases)
    optimizer = torch.optim.SGD(params, lr=5e-3, momentum=0.9)

    def step():
        with torch.no_grad():
            model(images).softmax(1).amax(1).mean().item()
            taught = (sum(teacher(images) for _ in range(views)) / views).log_softmax(1)
        learnt = student(images).log_softmax(1)
        loss = -(taught.exp() * learnt + learnt.exp() * taught).sum(1).mean() / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for average, parameter in zip(averages, params, strict=True):
                average.lerp_(parameter, 0.001)

    return step


def surgeon(model, images):
    """Forward and backward of ten images; two forwards, the backward of both, and an optimizer step on all weights.

    The view is there already, and nothing is pruned.
    """
    model, params = trainable(
        model, lambda module, name: name == "weight" or (name == "bias" and not isinstance(module, nn.Linear))
    )
    optimizer = torch.optim.Adam(params, lr=1e-5)
    view = images.flip(3)
    margin = 0.4 * math.log(model.num_classes)

    def step():
        entropy(model(images[:10])).mean().backward()
        optimizer.zero_grad()
        logits = model(images)
        uncertain = entropy(logits)
        weight = torch.where(uncertain < margin, (margin - uncertain).exp(), 0.0).detach()
        disagreement = -(logits.softmax(1) * model(view).log_softmax(1)).sum(1).mean()
        loss = (uncertain * weight).sum() / max(int((weight > 0).sum()), 1) + 0.01 * model.num_classes * disagreement
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
