"""The names of the batches that have arrived, one longer with each collection."""

from collections.abc import Iterator, Mapping


class Batches(Mapping[str, str]):
    """name -> digest, never changed: ``with_`` returns a longer one, which shares its entries with this one.

    So n batches cost memory and time in proportion to n, while every collection on the way keeps its own. Only a
    second continuation of the same mapping copies. Threads need no lock: the right to continue is popped once.
    """

    def __init__(self, entries: Mapping[str, str] | None = None) -> None:
        self._shared = {name: (index, text) for index, (name, text) in enumerate((entries or {}).items())}
        self._size, self._right = len(self._shared), [True]

    def with_(self, fresh: Mapping[str, str]) -> "Batches":
        """These entries and ``fresh``, whose names are new."""
        longer = Batches()
        longer._size = self._size + len(fresh)
        try:
            self._right.pop()
            longer._shared = self._shared
        except IndexError:
            longer._shared = dict(list(self._shared.items())[: self._size])
        longer._shared.update((name, (self._size + i, text)) for i, (name, text) in enumerate(fresh.items()))
        return longer

    def __getitem__(self, name: str) -> str:
        index, text = self._shared[name]
        if index >= self._size:
            raise KeyError(name)
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._shared)[: self._size])

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[type["Batches"], tuple[dict[str, str]]]:
        return Batches, (dict(self),)
