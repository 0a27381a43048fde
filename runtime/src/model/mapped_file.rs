//! A model's file mapped into memory, and words for the signal that ends the process when the file
//! is cut.

use std::fs::File;
use std::io;
use std::path::Path;

/// A whole file, mapped read-only. While it is mapped, a SIGBUS in it writes its name.
pub(super) struct MappedFile {
    // Dropped before the map: afterwards its addresses may be another file's.
    #[cfg(unix)]
    _named: Option<sigbus::Named>,
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps `file`, which `path` names.
    // Windows cuts no file that is mapped.
    #[cfg_attr(not(unix), expect(unused_variables))]
    pub(super) fn map(file: &File, path: &Path) -> io::Result<MappedFile> {
        // SAFETY: the map is read-only and private to this process, which never writes model files.
        // The one hazard left is another process that rewrites the file while it is served, as for
        // every program that maps its input; where it shortens the file, the process ends by
        // SIGBUS. A new file renamed over the old one leaves the mapped one as it is.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(MappedFile {
            #[cfg(unix)]
            _named: sigbus::Named::new(map.as_ptr_range(), path),
            map,
        })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(unix)]
mod sigbus {
    use std::mem::MaybeUninit;
    use std::ops::Range;
    use std::path::Path;
    use std::ptr;
    use std::sync::Once;
    use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

    use trail_platform::printable_line;

    /// Mappings that are named at once; a model of 400 B parameters has 200 files.
    const MAX_NAMED: usize = 512;
    /// Bytes of a name; a longer one is kept by its end.
    const MAX_NAME: usize = 200;

    /// The parts of the line around the name.
    const BEFORE: &[u8] = b"error: cannot read ";
    const AFTER: &[u8] = b" any more: it was shortened while it was served, or its disk fails; \
        start again, and replace a model by renaming a new file over the old one\n";

    /// Address range and name of a mapping. All are atomics, as a signal can interrupt the writer.
    struct Entry {
        /// First address; 0 where the entry is free, 1 while it is written.
        start: AtomicUsize,
        end: AtomicUsize,
        length: AtomicUsize,
        name: [AtomicU8; MAX_NAME],
    }

    static TABLE: [Entry; MAX_NAMED] = [const {
        Entry {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            name: [const { AtomicU8::new(0) }; MAX_NAME],
        }
    }; MAX_NAMED];

    /// Action of SIGBUS before, for the handler; null until it is known, and once it is restored.
    static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
    static INSTALL: Once = Once::new();

    /// An entry in use.
    pub(super) struct Named(&'static Entry);

    impl Named {
        /// Names the mapping at `addresses`; `None` if the table is full.
        pub(super) fn new(addresses: Range<*const u8>, path: &Path) -> Option<Named> {
            INSTALL.call_once(install);
            let claim = |entry: &&Entry| {
                entry.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            let entry = TABLE.iter().find(claim)?;
            let path = path.display().to_string();
            let name = printable_line(&path);
            let kept = &name.as_bytes()[name.len().saturating_sub(MAX_NAME)..];
            for (to, byte) in entry.name.iter().zip(kept) {
                to.store(*byte, Ordering::Relaxed);
            }
            entry.length.store(kept.len(), Ordering::Relaxed);
            entry.end.store(addresses.end.addr(), Ordering::Relaxed);
            entry.start.store(addresses.start.addr(), Ordering::Release);
            Some(Named(entry))
        }
    }

    impl Drop for Named {
        fn drop(&mut self) {
            self.0.end.store(0, Ordering::Relaxed);
            self.0.start.store(0, Ordering::Release);
        }
    }

    fn install() {
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: `sigaction` has integers and a set of integers as members, and all zeros is a
        // value: no flags, no signal blocked. The handler has the type that SA_SIGINFO asks for,
        // and calls what is safe in a handler alone. SA_ONSTACK: as the standard library's own.
        let installed = unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                on_sigbus;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, previous.as_mut_ptr())
        };
        if installed == 0 {
            // SAFETY: the call has written it.
            let previous = unsafe { previous.assume_init() };
            PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
        }
    }

    /// Writes a line if the address is in a mapping, and restores the action that there was: the
    /// instruction is run again, faults again, and that action is taken.
    extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        let previous = PREVIOUS.swap(ptr::null_mut(), Ordering::AcqRel);
        if previous.is_null() {
            // Another thread is about to restore the action, or `install` to store it: this thread
            // faults again until then.
            return;
        }
        // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO; SIGBUS has an
        // address.
        let address = unsafe { (*info).si_addr() }.addr();
        // SAFETY: as above.
        let is_fault = unsafe { (*info).si_code } > 0;
        if let Some(entry) = TABLE.iter().find(|entry| is_fault && entry.holds(address)) {
            let (line, length) = entry.line();
            // SAFETY: the first `length` bytes of `line` are initialised. A failed write leaves the
            // process to end without the line.
            unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), length) };
        }
        // SAFETY: `previous` is the action that `install` stored, and is never freed. A signal that
        // a process sent (`si_code` of 0 or less) has no instruction that faults again.
        unsafe {
            libc::sigaction(signal, previous, ptr::null_mut());
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        }
    }

    impl Entry {
        fn holds(&self, address: usize) -> bool {
            let start = self.start.load(Ordering::Acquire);
            start > 1 && (start..self.end.load(Ordering::Relaxed)).contains(&address)
        }

        /// The line, and its length. Allocates nothing.
        fn line(&self) -> ([u8; BEFORE.len() + MAX_NAME + AFTER.len()], usize) {
            let mut line = [0; BEFORE.len() + MAX_NAME + AFTER.len()];
            let name = self.name[..self.length.load(Ordering::Relaxed).min(MAX_NAME)].iter();
            let name = name.map(|byte| byte.load(Ordering::Relaxed));
            let bytes = BEFORE.iter().copied().chain(name).chain(AFTER.iter().copied());
            let mut length = 0;
            for (to, byte) in line.iter_mut().zip(bytes) {
                *to = byte;
                length += 1;
            }
            (line, length)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn an_address_finds_the_end_of_a_long_name_until_the_mapping_ends() {
            let bytes = [0_u8; 16];
            let name = format!("{}/model\n.gguf", "x".repeat(MAX_NAME));
            let named = Named::new(bytes.as_ptr_range(), Path::new(&name)).expect("room");
            let find = |at: *const u8| TABLE.iter().find(|entry| entry.holds(at.addr()));
            let entry = find(&bytes[15]).expect("found");
            assert!(find(bytes.as_ptr_range().end).is_none());
            let (line, length) = entry.line();
            let line = std::str::from_utf8(&line[..length]).expect("text");
            assert!(line.starts_with("error: cannot read xxx"), "{line}");
            assert!(line.contains("x/model\\n.gguf any more") && line.ends_with("one\n"), "{line}");
            drop(named);
            assert!(find(&bytes[15]).is_none());
        }
    }
}
