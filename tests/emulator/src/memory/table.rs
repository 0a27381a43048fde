//! All allocations of a context, found by address.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Allocation, DEVICE_BASE, Kind, State};

/// Address space between two allocations, so that a stray index finds nothing.
const GAP: u64 = 16 << 20;
/// As a real driver: suits every vector type.
const ALIGN: u64 = 512;

/// The allocations of a context.
#[derive(Default)]
pub(crate) struct Memory {
    by_base: BTreeMap<u64, Arc<Allocation>>,
    used: u64,
    /// Bytes of the host that are pinned.
    pinned: u64,
    next: u64,
    number: u64,
    snapshot: Option<Arc<Table>>,
}

impl Memory {
    /// Allocates device memory. Addresses are never given twice: a use after free is always seen.
    pub(crate) fn allocate(
        &mut self,
        bytes: u64,
        kind: Kind,
        state: State,
        name: &str,
    ) -> Option<Arc<Allocation>> {
        let base = if kind == Kind::Host { None } else { Some(DEVICE_BASE + self.next) };
        self.number += 1;
        let mut allocation = Allocation::new(self.number, base, bytes, kind, state)?;
        name.clone_into(&mut allocation.name);
        if base.is_some() {
            self.next += bytes.next_multiple_of(ALIGN) + GAP;
            self.used += bytes;
        } else {
            self.pinned += bytes;
        }
        Some(self.insert(allocation))
    }

    pub(crate) fn register(&mut self, host: *mut u8, bytes: u64) -> Arc<Allocation> {
        self.number += 1;
        let allocation = Allocation::registered(self.number, host, bytes);
        self.insert(allocation)
    }

    fn insert(&mut self, allocation: Allocation) -> Arc<Allocation> {
        let allocation = Arc::new(allocation);
        self.by_base.insert(allocation.base, allocation.clone());
        self.snapshot = None;
        allocation
    }

    /// The live allocation that starts at `base`.
    pub(crate) fn at_base(&self, base: u64) -> Option<&Arc<Allocation>> {
        self.by_base.get(&base).filter(|allocation| allocation.state() != State::Freed)
    }

    /// The allocation that holds `address`, alive or not.
    pub(crate) fn find(&self, address: u64) -> Option<&Arc<Allocation>> {
        let (_, allocation) = self.by_base.range(..=address).next_back()?;
        (address < allocation.base + allocation.bytes.max(1)).then_some(allocation)
    }

    /// Host memory leaves the table, since its address may come again; device memory stays as a
    /// mark.
    pub(crate) fn free(&mut self, allocation: &Allocation) {
        match allocation.kind {
            Kind::Device | Kind::Module => self.used = self.used.saturating_sub(allocation.bytes),
            Kind::Host | Kind::Registered => {
                if allocation.kind == Kind::Host {
                    self.pinned = self.pinned.saturating_sub(allocation.bytes);
                }
                self.by_base.remove(&allocation.base);
                self.snapshot = None;
            }
        }
        allocation.free();
    }

    /// The live allocation that holds all of a range, or why there is none.
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, String> {
        match self.find(address) {
            None => Err(format!("{address:#x} is in no allocation{}", self.near(address))),
            Some(allocation) if allocation.state() != State::Live => {
                Err(format!("{address:#x} is in {allocation}"))
            }
            Some(allocation) if !allocation.contains(address, bytes) => {
                Err(format!("{bytes} bytes at {address:#x} pass the end of {allocation}"))
            }
            Some(allocation) => Ok(allocation.clone()),
        }
    }

    fn near(&self, address: u64) -> String {
        self.snapshot_ref().map_or_else(String::new, |table| table.near(address))
    }

    fn snapshot_ref(&self) -> Option<Table> {
        Some(Table { sorted: self.by_base.values().cloned().collect() })
    }

    /// The allocations as a kernel sees them: none is made or freed while it runs.
    pub(crate) fn table(&mut self) -> Arc<Table> {
        let by_base = &self.by_base;
        self.snapshot
            .get_or_insert_with(|| Arc::new(Table { sorted: by_base.values().cloned().collect() }))
            .clone()
    }

    /// Bytes of the host that are pinned.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Bytes of live device memory.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Allocations that were not freed; a module's variables are freed with it.
    pub(crate) fn leaks(&self) -> Vec<Arc<Allocation>> {
        let leaked = |a: &&Arc<Allocation>| {
            a.state() != State::Freed && matches!(a.kind, Kind::Device | Kind::Host)
        };
        self.by_base.values().filter(leaked).cloned().collect()
    }
}

/// Allocations sorted by address.
pub(crate) struct Table {
    pub(crate) sorted: Vec<Arc<Allocation>>,
}

impl Table {
    /// Index of the allocation that may hold `address`: the last that starts at or before it.
    #[inline]
    pub(crate) fn index(&self, address: u64) -> Option<usize> {
        self.sorted.partition_point(|allocation| allocation.base <= address).checked_sub(1)
    }

    /// ", 16 bytes after allocation 3 ..." for an address in none.
    pub(crate) fn near(&self, address: u64) -> String {
        match self.index(address).map(|at| &self.sorted[at]) {
            Some(before) if address - before.base - before.bytes < GAP => {
                format!(", {} bytes past the end of {before}", address - before.base - before.bytes)
            }
            _ => String::new(),
        }
    }
}
