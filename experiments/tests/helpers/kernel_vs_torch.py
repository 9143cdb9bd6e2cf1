"""Updates of an experiment whose messages have kernels of their own, with them and without."""

import torch


def gradients_both_ways(experiment, config, data, messages, operator, device, monkeypatch):
    """Gradients of one update by parameter, with the kernels of the module `messages` and by torch alone; and how often
    its operator was called."""
    grads, called, served, call = [], [], messages.serves, getattr(messages, operator)
    monkeypatch.setattr(messages, operator, lambda *given: called.append(1) or call(*given))
    for ours in (True, False):
        monkeypatch.setattr(messages, "serves", served if ours else lambda structure, hidden: False)
        torch.manual_seed(0)
        model = experiment(config, data).to(device)
        loss, _ = model.loss(torch.arange(4, device=device), torch.Generator(device).manual_seed(0))
        loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    return *grads, len(called)
