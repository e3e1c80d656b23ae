from typing import Generic, TypeVar

T = TypeVar("T")


class DataLoader(Generic[T]):
    def __init__(self, dataset, batch_size, shuffle, collate_fn, num_workers, prefetch_factor, generator):
        assert batch_size == 1 and not shuffle  # num_workers: this process does it
        self.dataset, self.collate_fn = dataset, collate_fn

    def __iter__(self):
        return (self.collate_fn([item]) for item in self.dataset)
