"""Uses torch's own DistributedDataParallel with Herring; only the backend's name changes.

herring run -n 4 -- python examples/ddp_backend.py
torchrun --nproc-per-node 4 examples/ddp_backend.py
mpirun -n 4 python examples/ddp_backend.py herring://
"""

import sys

import torch
import torch.distributed as dist

import herring.torch  # Registers the backend with torch.


def main() -> None:
    init = sys.argv[1] if len(sys.argv) > 1 else "env://"
    dist.init_process_group("herring", init_method=init)  # instead of "gloo"
    torch.manual_seed(dist.get_rank())
    layers = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    # This hook is optional. It averages a bucket in one pass.
    model.register_comm_hook(None, herring.torch.ddp_comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100):
        inputs = torch.randn(32, 20)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            dist.all_reduce(mean := loss.detach(), dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step + 1}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
