//! Addresses of device memory, by the type of the elements there.

use std::fmt;
use std::marker::PhantomData;

/// The address of elements of type `T` in device memory; null by default. Plain data: the host
/// cannot follow it, and nothing keeps the memory alive.
#[repr(transparent)]
pub struct DevicePtr<T>(u64, PhantomData<fn() -> T>);

impl<T> DevicePtr<T> {
    /// The address of nothing.
    pub const NULL: DevicePtr<T> = DevicePtr::new(0);

    /// The pointer to `address`, a `CUdeviceptr` of the driver.
    pub const fn new(address: u64) -> DevicePtr<T> {
        DevicePtr(address, PhantomData)
    }

    /// The `CUdeviceptr` that the driver takes.
    pub const fn address(self) -> u64 {
        self.0
    }

    /// The pointer `count` elements further.
    #[must_use]
    pub const fn add(self, count: usize) -> DevicePtr<T> {
        DevicePtr::new(self.0 + (count * size_of::<T>()) as u64)
    }

    /// The same address, of elements of another type.
    pub const fn cast<U>(self) -> DevicePtr<U> {
        DevicePtr::new(self.0)
    }
}

// Not derived: the derives would ask for the same of `T`.
impl<T> Clone for DevicePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePtr<T> {}

impl<T> Default for DevicePtr<T> {
    fn default() -> Self {
        DevicePtr::NULL
    }
}

impl<T> PartialEq for DevicePtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> fmt::Debug for DevicePtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
