"""Prints as JSON which GPUs this process can use, by PyTorch and by its environment."""

import json
import os
import time

began = time.time()
import torch  # noqa: E402  # pyright: ignore[reportMissingImports]

imported = time.time()
count = torch.cuda.device_count()
seen = [torch.cuda.get_device_properties(index) for index in range(count)]
if count:
    torch.ones(1, device="cuda").add_(1).item()
print(
    json.dumps(
        {
            "torch": torch.__version__,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "count": count,
            "names": [each.name for each in seen],
            "uuids": [str(getattr(each, "uuid", "")) for each in seen],
            "bytes": [each.total_memory for each in seen],
            "began": began,
            "import_seconds": round(imported - began, 2),
            "kernel_seconds": round(time.time() - imported, 2),
        }
    )
)
