//! Return of freed memory to the system.

/// Returns the allocator's free pages to the system, in all arenas. glibc keeps what an arena has
/// freed below its top, so that one burst of large allocations would stay resident for good. Takes
/// a few milliseconds, in which other threads may wait for their arena. Does nothing with another
/// C library.
pub fn release_free_pages() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: the declaration is that of glibc's malloc.h (`int malloc_trim(size_t)`). The
        // function may be called from any thread and gives back pages of no live allocation.
        unsafe { malloc_trim(0) };
    }
}
