"""Changes that `mutate.py` leaves out, since no test could notice them: by module, the change and the reason."""

from __future__ import annotations

_WINDOWS = "is decided only where files cannot be locked, on Windows"
_AHEAD = "changes only how much memory is taken ahead, not what is held"
_TIE = "no number that is computed from data is exactly there, rounding apart"
_TYPE = "is a name for type checkers, which run nothing"
_NO_ROOM = "is decided only on a machine that has too little memory for a table"

EQUIVALENT: dict[str, dict[str, str]] = {
    "moments": {
        "unted[:, None], rows, 0.0)  ->  unted[:, None], rows, 0.01)": "is multiplied by a weight of 0",
        "here(total > 0, total, 1.0)  ->  here(total > 0, total, 1.51)": "is what 0 is divided by",
        "otal if total > 0 else 1.0  ->  otal if total > 0 else 1.51": "is what 0 is divided by",
        "([Any], Any)  ->  ([], Any)": _TYPE,
        "p.where(known, signal, 1.0)  ->  p.where(known, signal, 1.51)": "the result is left out where it is not known",
        "pha) if alpha < 1.0 else -math.inf  ->  pha) if alpha < 1.0 else math.inf": (
            "makes a weight that is not positive, which is replaced by 1, as it would be anyway"
        ),
    },
    "stream-moments": {
        "slice(EVER, EVER + 1)  ->  slice(EVER, EVER - 1)": "leaves out the last of two, too",
        "ight > 0, both.weight, 1.0)  ->  ight > 0, both.weight, 1.51)": "is what 0 is divided by",
        ".where(both > 0, both, 1.0)  ->  .where(both > 0, both, 1.51)": "is what 0 is divided by",
        "min=1.0  ->  min=1.51": "is asked for only where the weight is above 4",
        "here(total > 0, total, 1.0)  ->  here(total > 0, total, 1.51)": "is what 0 is divided by",
    },
    "shift-estimate": {
        "xp.where(effective < weight, effective, weight  ->  xp.where(effective <= weight, effective, weight": (
            "chooses between two equal numbers"
        ),
        "rust > 0, state.trust, 1.0)  ->  rust > 0, state.trust, 1.51)": "is what 0 is divided by",
        "(squares > 0, squares, 1.0)  ->  (squares > 0, squares, 1.51)": "is what 0 is divided by",
        "eight[:, EVER], lately], -1)  ->  eight[:, EVER], lately], 1)": "names the same axis of two",
        "ples > 1, samples - 1, 1.0)  ->  ples > 1, samples - 1, 1.51)": "is left out: so few samples tell nothing",
        (
            "th.sqrt(classes) * skew >= use.gate * variance ** 1."
            "  ->  th.sqrt(classes) * skew > use.gate * variance ** 1."
        ): _TIE,
        "squares > 0  ->  squares > 1": "then there are as many effective samples as their weight, or too few to count",
        "s > FEWEST) & (variance >= TINY)  ->  s > FEWEST) & (variance > TINY)": _TIE,
    },
    "files": {
        "_OLD = 24 * 3600  ->  _OLD = 24 / 3600": _WINDOWS,
        "24 * 3600  ->  25 * 3600": _WINDOWS,
        "24 * 3600  ->  24 * 3601": _WINDOWS,
        " - path.stat().st_mtime > _OLD  ->   - path.stat().st_mtime >= _OLD": _WINDOWS,
        "time.time() - path.stat().st_mtime > _  ->  time.time() + path.stat().st_mtime > _": _WINDOWS,
    },
    "metrics": {
        "nt(known.labels.max()) + 1  ->  nt(known.labels.max()) + 2": "adds a class without samples, which is left out",
        "rch.bincount(known.labels, minlength=classes)  ->  rch.bincount(known.labels)": (
            "the largest label makes it that long anyway"
        ),
        "torch.zeros(2, bins, dtype=torch.float  ->  torch.zeros(3, bins, dtype=torch.float": (
            "adds a third row, which nobody reads"
        ),
    },
    "sqlite-store": {
        "_AT_ONCE = 500  ->  _AT_ONCE = 501": "changes only how many streams are read by one query",
        (
            "GMA journal_mode = WAL') self._database.execute('PRAGMA synchronous = FULL') with self._transaction()"
            "  ->  GMA journal_mode = WAL') pass with self._transaction()"
        ): "is the default of most builds of SQLite, but not of all",
    },
    "orders": {
        "ake(domain.size, samples), dtype=np.int64)  ->  ake(domain.size, samples))": (
            "int64 is what NumPy takes by itself (on Windows from version 2 on)"
        ),
        "els = np.zeros(len(order), dtype=np.int64)  ->  els = np.zeros(len(order))": (
            "labels are only compared, and whole numbers are exact in float64"
        ),
    },
    "statistics": {
        " max(expected, 1e-300)) > suspicious  ->   max(expected, 1e-300)) >= suspicious": (
            "a probability computed from data is never exactly that small number"
        ),
        "seen <= expected or chdtrc(runs -  ->  seen < expected or chdtrc(runs -": (
            "where both are equal, nothing is suspicious either: the probability is far above 0.01"
        ),
        "range(60)  ->  range(61)": "after 60 halvings both ends are the same number",
        "_MANY = 1000000000.0  ->  _MANY = 1500000000.01": "either is a normal distribution to nine digits",
        "np.asarray(pvalues, dtype=float)[order]  ->  np.asarray(pvalues)[order]": (
            "whole numbers become floats in the end"
        ),
        "sums[np.abs(sums) > 1e-09]  ->  sums[np.abs(sums) >= 1e-09]": _TIE,
        "if score < 1e-09: return 1.0  ->  if score <= 1e-09: return 1.0": _TIE,
        "np.zeros(1)  ->  np.zeros(2)": "every sum then comes twice, which changes no share",
        "(sums > score + 1e-09).mean  ->  (sums >= score + 1e-09).mean": _TIE,
        "(np.abs(sums - score) <= 1e-09).mean  ->  (np.abs(sums - score) < 1e-09).mean": _TIE,
        "if 0.0001 < pvalue < 0.5: limit *= ab  ->  if 0.0001 <= pvalue < 0.5: limit *= ab": _TIE,
        (
            " math.sqrt(won + lost) / -float(stdtrit(noise.freedo"
            "  ->   math.sqrt(won + lost) / float(stdtrit(noise.freedo"
        ): "only the square of the limit is used",
        "if function(outside) <= 0: return outside  ->  if function(outside) < 0: return outside": (
            "the bisection then ends at the same place"
        ),
        (
            "le) if function(middle) > 0 else (middle, outside)"
            "  ->  le) if function(middle) >= 0 else (middle, outside)"
        ): _TIE,
        "nt(place, values, places), dtype=np.float64)  ->  nt(place, values, places))": (
            "is what bincount returns if it has weights"
        ),
    },
    "stream-cache": {
        "_FIRST = 64  ->  _FIRST = 65": _AHEAD,
        "if self._next + fresh > len(self.count): self._gr  ->  if self._next + fresh >= len(self.count): self._gr": (
            _AHEAD
        ),
        "f self.count.device.type == 'cpu' else 2  ->  f self.count.device.type != 'cpu' else 2": _AHEAD,
        "8 if self.count.device.typ  ->  9 if self.count.device.typ": _AHEAD,
        "evice.type == 'cpu' else 2  ->  evice.type == 'cpu' else 3": _AHEAD,
        ", Tensor], recurse: bool=True  ->  , Tensor], recurse: bool=False": "a table has no modules in it",
        "torch.empty(0, device=self.count.devic  ->  torch.empty(1, device=self.count.devic": (
            "only the device of this tensor is read"
        ),
        "_EVICT = 256  ->  _EVICT = 257": "changes only how many streams are written together",
        "while rows < needed: rows *= factor  ->  while rows <= needed: rows *= factor": _AHEAD,
        "min(rows, needed + needed //  ->  max(rows, needed + needed //": _NO_ROOM,
        "min(rows, needed + needed // 4)  ->  min(rows, needed - needed // 4)": _NO_ROOM,
        "needed + needed // 4  ->  needed + needed * 4": _NO_ROOM,
        "needed // 4  ->  needed // 5": _NO_ROOM,
    },
    "stream-rule": {
        "rows.shape[-1]  ->  rows.shape[1]": "rows have two dimensions",
        "inite[:, None], rows, 0.0)  ->  inite[:, None], rows, 0.01)": "rows that are not finite weigh nothing",
    },
    "corruptions": {
        "([Image, int, np.random.Generator],  ->  ([int, np.random.Generator],": _TYPE,
        "([Image, int, np.random.Generator], Imag  ->  ([Image, np.random.Generator], Imag": _TYPE,
        "([Image, int, np.random.Generator], Image)  ->  ([Image, int], Image)": _TYPE,
    },
    "records": {
        "known == path.absolute() and con  ->  known != path.absolute() and con": (
            "records depend on the content of a file alone, not on its path"
        ),
        (
            "_LAST_READ[:] = [(path.absolute(), content, {key: dict(record) for key, record in good.items()})]"
            "  ->  _LAST_READ[:] = []"
        ): "what is remembered only saves time",
        (
            "g[str, Record]) -> None: _LAST_READ[:] = [(path.absolute(), content, {key: dict(record) for key, record "
            "in good.items()})]  ->  g[str, Record]) -> None: pass"
        ): "what is remembered only saves time",
        "content.endswith(b'\\n'): _remember(self.path, content, good)  ->  content.endswith(b'\\n'): pass": (
            "what is remembered only saves time"
        ),
        (
            "read_parquet(self.path)} _remember(self.path, content, good) return list(good.values("
            "  ->  read_parquet(self.path)} pass return list(good.values("
        ): "what is remembered only saves time",
    },
}
