"""Files of the Hugging Face hub: fetched, or from the cache; or one clear error."""

from __future__ import annotations

import os
from pathlib import Path

from neotta.errors import ModelLoadError

TIMEOUT = 5.0  # seconds to wait for the hub's first answer, unless HF_HUB_ETAG_TIMEOUT says otherwise


class Repository:
    """A repository on the hub, at one state of it; where the hub does not answer, what is in the cache of it.

    Args:
        name: "owner/name".
        offer: What the caller can do without it, for errors.
        revision: Branch, tag or commit.
    """

    def __init__(self, name: str, *, offer: str, revision: str | None = None) -> None:
        self.name = name
        self._offer = offer
        self._revision = revision
        self._asked = False
        self._trouble: Exception | None = None

    @property
    def reached(self) -> bool:
        """Whether the hub answered."""
        return self._asked and self._trouble is None

    def find(self, filename: str) -> Path | None:
        """Return the local path of a file at the repository's root, or None if it does not exist."""
        from huggingface_hub import errors, hf_hub_download

        try:
            if not self._asked:
                self._ask(filename)
            offline = self._trouble is not None
            path = hf_hub_download(self.name, filename, revision=self._revision, local_files_only=offline)
        except errors.LocalEntryNotFoundError as error:  # the hub fell silent after its first answer, or before
            self._trouble = self._trouble or error
            return None
        except errors.EntryNotFoundError:
            return None
        except errors.RevisionNotFoundError as error:
            raise ModelLoadError(f"the repository {self.name!r} has no revision {self._revision!r}") from error
        except errors.HFValidationError as error:
            raise ModelLoadError(
                f"{self.name!r} is neither a folder nor the name of a repository on the hub"
            ) from error
        except Exception as error:
            self._trouble = error
            raise self.missing(filename) from error
        self._revision = Path(path).parent.name  # the commit: all files shall be of the same state
        return Path(path)

    def missing(self, filename: str) -> ModelLoadError:
        """The error that says why a file was not found, and what to do."""
        from huggingface_hub import constants, errors

        error = self._trouble
        if error is None:
            return ModelLoadError(f"the repository {self.name!r} has no {filename}: {self._offer}")
        if isinstance(error, errors.RepositoryNotFoundError):  # the hub says so of private ones, too
            explained = ModelLoadError(
                f"the hub has no repository {self.name!r} that you may read: check its name, "
                "or log in with `hf auth login`"
            )
        else:
            why = f"the hub cannot be reached ({type(error).__name__}: {error})".splitlines()[0]
            if constants.HF_HUB_OFFLINE:
                why = "HF_HUB_OFFLINE is set"
            explained = ModelLoadError(
                f"{filename} of {self.name!r} is not in the cache ({constants.HF_HUB_CACHE}), and {why}. "
                f"Fetch it with `hf download {self.name} {filename}` where there is a network, "
                f"or {self._offer}"
            )
        explained.__cause__ = error
        return explained

    def _ask(self, filename: str) -> None:
        """Find out whether the hub answers; the download itself would try for half a minute."""
        from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

        timeout = constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else TIMEOUT
        url = hf_hub_url(self.name, filename, revision=self._revision)
        self._asked = True
        try:
            get_hf_file_metadata(url, timeout=timeout)
        except (errors.EntryNotFoundError, errors.RevisionNotFoundError):
            raise  # an answer, too
        except Exception as error:  # which ones depends on the HTTP library under huggingface_hub
            self._trouble = error
