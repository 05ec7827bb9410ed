"""Files of the Hugging Face hub: from the cache, or fetched; or one clear error."""

from __future__ import annotations

from pathlib import Path

from neotta.errors import ModelLoadError

TIMEOUT = 5.0  # seconds to wait for the hub's first answer, unless HF_HUB_ETAG_TIMEOUT says otherwise


def fetch(repo: str, filename: str, *, revision: str | None = None, hint: str) -> Path | None:
    """Give the local path of one file of a repository; None if the repository has no such file.

    Args:
        repo: Name of the repository, "owner/name".
        filename: Name of the file in it.
        revision: Branch, tag or commit.
        hint: What to do when the hub cannot be reached, as the end of the error's sentence.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        known = try_to_load_from_cache(repo, filename, revision=revision) if revision else None
        if known is not None and not isinstance(known, str):  # the cache remembers that there is no such file
            return None
        return Path(hf_hub_download(repo, filename, revision=revision, etag_timeout=TIMEOUT))
    except HFValidationError as error:
        raise ModelLoadError(
            f"{repo!r} is neither a folder nor the name of a repository on the hub"
        ) from error
    except RepositoryNotFoundError as error:  # also what the hub says of private ones
        raise ModelLoadError(
            f"the hub has no repository {repo!r} that you may read: check its name, "
            "or log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelLoadError(f"the repository {repo!r} has no revision {revision!r}") from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(repo, filename, hint, error) from error
    except EntryNotFoundError:
        return None
    except Exception as error:  # which ones depends on the HTTP library under huggingface_hub
        raise _unreachable(repo, filename, hint, error) from error


def _unreachable(repo: str, filename: str, hint: str, error: Exception) -> ModelLoadError:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        why = "HF_HUB_OFFLINE is set"
    else:
        cause = error.__cause__ or error
        why = f"the hub cannot be reached: {type(cause).__name__}: {cause}".splitlines()[0]
    return ModelLoadError(
        f"{filename} of {repo!r} is not in the cache ({constants.HF_HUB_CACHE}), and {why}. {hint}"
    )
