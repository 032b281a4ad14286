"""Compiled code kept between runs. It is executable, so only what this home has signed is ever used.

`opened` is what a run needs, `CacheStore` holds the kept caches of a home, `archive` carries one to another.
"""

from .manifest import CachedFile, Manifest, key_of
from .run_cache import CompileCache, opened
from .store import CacheEntry, CacheStore

__all__ = ["CacheEntry", "CacheStore", "CachedFile", "CompileCache", "Manifest", "key_of", "opened"]
