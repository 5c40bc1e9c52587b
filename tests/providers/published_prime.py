"""What Prime Intellect publishes of the calls that the client makes: requests and answers.

Source: https://api.primeintellect.ai/openapi.json, as the copy of August 2026 in the GitHub
repository api-evangelist/prime-intellect (openapi/: pods, availability, billing, user) has it;
read on 2026-11-21. The lists are in our words: names, kinds, and what may be left out.

Unverified, since no document has it: every error but 422 (the document lists 401 without a body,
and nothing else). Their form `{"detail": text}` is what the vendor's command line reads
(https://github.com/PrimeIntellect-ai/prime, packages/prime/src/prime_cli/core/client.py of
2026-08-19), which also takes FastAPI's form of a 422.
"""

from tests.providers.exchanges import Endpoint
from tests.providers.shapes import (
    Shape,
    boolean,
    by_key,
    either,
    fields,
    like,
    number,
    or_null,
    several,
    text,
    unverified,
    whole,
    word,
)

V1 = "/api/v1"
_OPENAPI = "https://api.primeintellect.ai/openapi.json"
_GPU = like(
    r"CPU_NODE|GB200|GB300|RTX_PRO_6000B_96GB"
    r"|(A10|A100|A30|A40|B200|B300|RTX\d{4}(Ti|Ada)?|G?H(100|200)|L4|L40S?|A\d000|A4500|V100|P100"
    r"|T4|P4|P40)_\d+GB"
)
_SOCKET = word("PCIe", "SXM2", "SXM3", "SXM4", "SXM5", "SXM6")
_SELLER = word(
    "runpod", "fluidstack", "lambdalabs", "hyperstack", "oblivus", "cudocompute", "scaleway",
    "tensordock", "datacrunch", "latitude", "crusoecloud", "massedcompute", "akash",
    "primeintellect", "primecompute", "dc_impala", "dc_kudu", "dc_roan", "nebius", "dc_eland",
    "dc_wildebeest", "vultr", "dc_gnu", "denvr",
)  # fmt: skip
_IMAGE = word(
    "ubuntu_22_cuda_12", "cuda_12_1_pytorch_2_2", "cuda_11_8_pytorch_2_1",
    "cuda_12_1_pytorch_2_3", "cuda_12_1_pytorch_2_4", "cuda_12_4_pytorch_2_4",
    "cuda_12_4_pytorch_2_5", "cuda_12_4_pytorch_2_6", "cuda_12_6_pytorch_2_7",
    "stable_diffusion", "axolotl", "bittensor", "hivemind", "petals_llama", "vllm_llama_8b",
    "vllm_llama_70b", "vllm_llama_405b", "custom_template", "flux", "prime_rl",
)  # fmt: skip
_REGION = word(
    "africa", "asia_south", "asia_northeast", "australia", "canada", "eu_east", "eu_north",
    "eu_west", "middle_east", "south_america", "united_states",
)  # fmt: skip
_SECURITY = word("secure_cloud", "community_cloud")
_TIME = like(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_COUNT = or_null(whole(1))
_WORDS = or_null(text)
_DOLLARS = or_null(number)
_STATUS = word(
    "PROVISIONING", "PENDING", "ACTIVE", "STOPPED", "ERROR", "DELETING", "UNKNOWN", "TERMINATED"
)
_INSTALLATION = word("PENDING", "ACTIVE", "FINISHED", "ERROR", "TERMINATED")
_ADDRESSES = or_null(either(text, several(or_null(text))))
_AMOUNT = fields(
    {
        "minCount?": or_null(whole()),
        "defaultCount?": or_null(whole()),
        "maxCount?": or_null(whole()),
        "pricePerUnit?": or_null(number),
        "step?": or_null(whole()),
        "defaultIncludedInPrice?": or_null(boolean),
        "additionalInfo?": or_null(text),
    }
)
_ROW = fields(
    {
        "cloudId": text,
        "gpuType": _GPU,
        "socket": _SOCKET,
        "provider": _SELLER,
        "region?": or_null(_REGION),
        "dataCenter?": _WORDS,
        "country?": _WORDS,
        "gpuCount": whole(),
        "gpuMemory": whole(),
        "disk?": _AMOUNT,
        "sharedDisk?": _AMOUNT,
        "vcpu?": _AMOUNT,
        "memory?": _AMOUNT,
        "internetSpeed?": or_null(whole()),
        "interconnect?": or_null(whole()),
        "interconnectType?": _WORDS,
        "provisioningTime?": or_null(whole()),
        "stockStatus?": word("Available", "Low", "Medium", "High", "Unavailable"),
        "security": _SECURITY,
        "prices": fields(
            {
                "onDemand?": _DOLLARS,
                "communityPrice?": _DOLLARS,
                "isVariable?": or_null(boolean),
                "currency": word("USD", "EUR"),
            }
        ),
        "images": several(_IMAGE),
        "isSpot?": or_null(boolean),
        "prepaidTime?": or_null(number),
    }
)
_ROWS = fields({"items": several(_ROW), "totalCount": whole()})
_ROWS_QUERY: dict[str, Shape] = {
    "page?": whole(1),
    "page_size?": whole(1, 100),
    "regions?": several(_REGION),
    "gpu_count?": whole(),
    "gpu_type?": _GPU,
    "socket?": _SOCKET,
    "security?": _SECURITY,
    "data_center_id?": text,
    "cloud_id?": text,
    "disks?": several(text),
}
_PRICING = fields({"onDemand?": _DOLLARS, "communityPrice?": _DOLLARS, "spotPrice?": _DOLLARS})
_SUMMARY = by_key(
    _GPU, by_key(like(r"\d+"), by_key(either(word("cheapest"), _REGION), or_null(_PRICING)))
)
_POD_BODY = fields(
    {
        "pod": fields(
            {
                # The vendor's command line takes no other characters in a name.
                "name?": like(r"[A-Za-z0-9-]*[A-Za-z][A-Za-z0-9-]*"),
                "cloudId": text,
                "gpuType": _GPU,
                "socket": _SOCKET,
                "gpuCount": whole(1),
                "diskSize?": _COUNT,
                "vcpus?": _COUNT,
                "memory?": _COUNT,
                "maxPrice?": or_null(number),
                "image?": _IMAGE,
                "customTemplateId?": _WORDS,
                "dataCenterId?": _WORDS,
                "country?": _WORDS,
                "security?": or_null(_SECURITY),
                "envVars?": or_null(several(fields({"key": text, "value": text}))),
                "jupyterPassword?": _WORDS,
                "sshKeyId?": _WORDS,
                "autoRestart?": or_null(boolean),
                "prepaidForHr?": or_null(number),
            }
        ),
        "provider": fields({"type": _SELLER}),
        "disks?": or_null(several(text)),
        "team?": or_null(fields({"teamId": text})),
        "team_member_ids?": or_null(several(text)),
        "shared_with_team?": boolean,
    }
)
_POD = fields(
    {
        "id": text,
        "userId": text,
        "teamId?": _WORDS,
        "walletId?": _WORDS,
        "name": text,
        "type?": word("HOSTED", "EXTERNAL"),
        "providerType": _SELLER,
        "status?": _STATUS,
        "installationStatus?": _INSTALLATION,
        "installationFailure?": _WORDS,
        "installationProgress?": or_null(whole()),
        "createdAt?": _TIME,
        "updatedAt?": _TIME,
        "terminatedAt?": or_null(_TIME),
        "gpuName": _GPU,
        "gpuCount": whole(),
        "socket": _SOCKET,
        "priceHr": number,
        "stoppedPriceHr?": _DOLLARS,
        "provisioningPriceHr?": _DOLLARS,
        "environmentType?": _IMAGE,
        "customTemplateId?": _WORDS,
        "clusterId?": _WORDS,
        "primePortMapping?": or_null(
            several(
                fields(
                    {
                        "internal": text,
                        "external": text,
                        "protocol": word("TCP", "UDP"),
                        "usedBy?": or_null(word("SSH", "JUPYTER_NOTEBOOK", "WEB_SERVER")),
                        "description?": _WORDS,
                    }
                )
            )
        ),
        "sshConnection?": _ADDRESSES,
        "ip?": _ADDRESSES,
        "resources?": or_null(
            fields(
                {
                    "memory?": or_null(whole()),
                    "disk?": or_null(whole()),
                    "shared_disk?": or_null(whole()),
                    "vcpus?": or_null(whole()),
                }
            )
        ),
        "attachedResources?": or_null(
            several(
                fields(
                    {
                        "resourceType": word("DISK"),
                        "id": either(text, whole()),
                        "status?": word("UNATTACHED", "ATTACHED", "MOUNTED"),
                        "isDetachable?": boolean,
                        "mountPath?": text,
                        "resourcePath?": _WORDS,
                        "size?": or_null(either(text, whole())),
                        "isShared?": or_null(boolean),
                    }
                )
            )
        ),
        "isSpot?": or_null(boolean),
        "autoRestart?": or_null(boolean),
    }
)
_ENDED = fields(
    {
        "id": text,
        "name": text,
        "providerType": _SELLER,
        "provisionedBy?": _WORDS,
        "type": word("Instance", "Cluster", "Disk", "Sandbox", "Inference", "Image", "Training"),
        "createdAt": _TIME,
        "terminatedAt?": or_null(_TIME),
        "gpuName": text,
        "gpuCount": whole(),
        "socket?": _WORDS,
        "priceHr": number,
        "userId": text,
        "teamId?": _WORDS,
        "totalBilledPrice": number,
    }
)
"""A row of the history has neither a status nor an installation: it has ended."""
_WALLET = fields(
    {
        "wallet_id": text,
        "team_id?": _WORDS,
        "balance_usd": number,
        "currency": text,
        "total_billings": whole(),
        "recent_billings": several(
            fields(
                {
                    "id": text,
                    "created_at": _TIME,
                    "updated_at": _TIME,
                    "last_billed_at?": or_null(_TIME),
                    "amount_usd": number,
                    "currency": text,
                    "resource_type": word(
                        "compute", "training", "inference", "disks", "sandboxes", "images"
                    ),
                    "resource_id?": _WORDS,
                }
            )
        ),
    }
)
_WHO = fields(
    {
        "data?": or_null(
            fields(
                {
                    "id?": text,
                    "role?": word("ADMIN", "MANAGER", "USER"),
                    "createdAt?": _TIME,
                    "name": text,
                    "slug?": _WORDS,
                    "email": text,
                    "image?": _WORDS,
                    "emailVerified?": or_null(boolean),
                    "hasBetaAccess?": boolean,
                    "isBanned?": boolean,
                    "skipPrepay?": boolean,
                    "blacklist?": several(text),
                    "scope?": by_key(text, or_null(fields({"read": boolean, "write": boolean}))),
                }
            )
        ),
        "status?": _WORDS,
    }
)
_DETAIL = fields({"detail": text})
_LISTED = fields({"errors": several(fields({"param": text, "details": text}), 1)})
_FASTAPI = fields(
    {
        "detail": several(
            fields({"loc": several(either(text, whole())), "msg": text, "type?": text}), 1
        )
    }
)
_REFUSALS: dict[int, Shape] = {
    400: _DETAIL,
    401: unverified,
    402: _DETAIL,
    403: _DETAIL,
    404: _DETAIL,
    422: either(_LISTED, _FASTAPI),
    429: _DETAIL,
    500: _DETAIL,
    503: _DETAIL,
}
_ANYWHERE = (401, 403, 422, 429, 500, 503)


def _refusals(*more: int) -> dict[int, Shape]:
    return {status: _REFUSALS[status] for status in (*_ANYWHERE, *more)}


def _cut(item: Shape) -> Shape:
    counts = {"total_count?": whole(), "offset?": whole(0), "limit?": whole(0)}
    return fields({**counts, "data": several(item), "status?": _WORDS})


_CUT_QUERY: dict[str, Shape] = {"offset?": whole(), "limit?": whole()}
ENDPOINTS = (
    Endpoint(f"GET {V1}/user/whoami", _OPENAPI, answers={200: _WHO, **_refusals()}),
    Endpoint(
        f"GET {V1}/billing/wallet",
        _OPENAPI,
        query={"limit?": whole(1, 100), "offset?": whole(0), "teamId?": text},
        answers={200: _WALLET, **_refusals()},
    ),
    Endpoint(
        f"GET {V1}/availability/gpus",
        _OPENAPI,
        query=_ROWS_QUERY,
        answers={200: _ROWS, **_refusals()},
    ),
    Endpoint(
        f"GET {V1}/availability/multi-node",
        _OPENAPI,
        query=_ROWS_QUERY,
        answers={200: _ROWS, **_refusals()},
    ),
    Endpoint(
        f"GET {V1}/availability/gpu-summary",
        _OPENAPI,
        answers={200: _SUMMARY, **_refusals()},
    ),
    Endpoint(
        f"POST {V1}/pods/", _OPENAPI, body=_POD_BODY, answers={200: _POD, **_refusals(400, 402)}
    ),
    Endpoint(
        f"GET {V1}/pods/", _OPENAPI, query=_CUT_QUERY, answers={200: _cut(_POD), **_refusals()}
    ),
    Endpoint(
        f"GET {V1}/pods/history",
        _OPENAPI,
        query={
            "sort_by?": word("terminatedAt", "createdAt"),
            "sort_order?": word("asc", "desc"),
            **_CUT_QUERY,
        },
        answers={200: _cut(_ENDED), **_refusals()},
    ),
    Endpoint(f"GET {V1}/pods/{{id}}", _OPENAPI, answers={200: _POD, **_refusals(404)}),
    Endpoint(
        f"DELETE {V1}/pods/{{id}}",
        _OPENAPI,
        answers={200: fields({"status": _STATUS}), **_refusals(404)},
    ),
)
