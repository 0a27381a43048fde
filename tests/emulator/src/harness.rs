//! How a test reaches the emulator: through the loader, as a program reaches the driver.
//!
//! A test file invokes [`crate::on_emulator!`] once. Before its `main` the test binary then
//! executes itself again with a library path whose first folder holds the emulator under the
//! driver's names; the same binary runs on a real driver with `TRAIL_TEST_DRIVER=real`. Each test
//! first opens a [`Session`]:
//!
//! ```ignore
//! trail_cuda_emulator::on_emulator!();
//!
//! #[test]
//! fn kernel_agrees_with_its_reference() {
//!     let session = trail_cuda_emulator::session();
//!     let context = cudarc::driver::CudaContext::new(0).unwrap();
//!     // ...
//! } // The session fails the test if the emulator found anything, leaks included.
//! ```

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Set in a process that was executed again.
const ENTERED: &str = "TRAIL_EMU_ENTERED";
/// `real` or `emulator` (the default).
const DRIVER: &str = "TRAIL_TEST_DRIVER";

unsafe extern "C" {
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Makes a test binary run on the emulator: once in every test file that uses the driver.
#[macro_export]
macro_rules! on_emulator {
    () => {
        #[used]
        #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
        static TRAIL_ENTER: extern "C" fn(i32, *const *const ::std::ffi::c_char) =
            $crate::harness::enter;
    };
}

/// Executes the process again with the emulator in front of the library path. Called before `main`,
/// with its arguments.
pub extern "C" fn enter(_count: c_int, arguments: *const *const c_char) {
    if std::env::var_os(ENTERED).is_some() || wants_real() {
        return;
    }
    if let Err(problem) = re_execute(arguments) {
        eprintln!("trail-cuda-emulator: {problem}");
        std::process::exit(1);
    }
}

fn wants_real() -> bool {
    std::env::var_os(DRIVER).is_some_and(|driver| driver == "real")
}

fn re_execute(arguments: *const *const c_char) -> Result<(), String> {
    let program =
        std::env::current_exe().map_err(|error| format!("no path of this program: {error}"))?;
    let folder = loader_folder(&program)?;
    let mut path = folder.into_os_string();
    if let Some(old) = std::env::var_os("LD_LIBRARY_PATH").filter(|old| !old.is_empty()) {
        path.push(":");
        path.push(old);
    }
    // SAFETY: before `main` there is no other thread that could read the environment.
    unsafe {
        std::env::set_var("LD_LIBRARY_PATH", path);
        std::env::set_var(ENTERED, "1");
    }
    let program =
        CString::new(program.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the loader gave `arguments`: texts, then null. `execv` returns only when it fails.
    unsafe { execv(program.as_ptr(), arguments) };
    Err(format!("cannot start again: {}", std::io::Error::last_os_error()))
}

/// A folder with the emulator under the driver's names. Cargo puts the library of a dependency
/// beside the test binary, in `deps`.
fn loader_folder(program: &Path) -> Result<PathBuf, String> {
    let name = "libtrail_cuda_emulator.so";
    let beside = program.parent().unwrap_or(Path::new("."));
    let places = [beside.to_owned(), beside.join("deps"), beside.join("..")];
    let library = places.iter().map(|place| place.join(name)).find(|path| path.exists());
    let library = library.ok_or_else(|| format!("{name} is not beside {}", program.display()))?;
    let folder = beside.join("trail-cuda-emulator");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for driver in ["libcuda.so", "libcuda.so.1"] {
        let link = folder.join(driver);
        if std::fs::read_link(&link).is_ok_and(|target| target == library) {
            continue;
        }
        // Made aside and renamed: another test binary may be starting at this moment.
        let aside = folder.join(format!("{driver}.{}", std::process::id()));
        let made = std::os::unix::fs::symlink(&library, &aside)
            .and_then(|()| std::fs::rename(&aside, &link));
        made.map_err(|error| format!("{}: {error}", link.display()))?;
    }
    Ok(folder)
}

/// The control functions of the emulator that is loaded as the driver. See [`crate`]'s
/// `driver::control` for what each does.
#[derive(Clone, Copy)]
pub struct Emulator {
    library: *mut c_void,
}

// SAFETY: the pointer names a loaded library, which is never unloaded; its control functions lock
// for themselves.
unsafe impl Send for Emulator {}
// SAFETY: as above.
unsafe impl Sync for Emulator {}

/// Things that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// `cuMemAlloc` and its like.
    Allocation = 0,
    /// A launch.
    Launch = 1,
    /// A copy or a fill.
    Copy = 2,
    /// A kernel that begins, which never ends.
    Hang = 3,
    /// A copy that begins, which never ends.
    HangCopy = 4,
}

/// The chips that the emulator can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// Ampere; takes text alone.
    A100 = 0,
    /// Hopper.
    H100 = 1,
    /// Ada with few multiprocessors.
    L4 = 2,
    /// Ada.
    Rtx4090 = 3,
    /// Blackwell of data centers.
    B200 = 4,
    /// Turing, which is too old.
    T4 = 5,
    /// Blackwell of desktops.
    Rtx5090 = 6,
    /// Blackwell on a board, which no machine code was compiled for.
    Thor = 7,
}

/// When queued work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Not before something waits for it.
    Late = 0,
    /// At once, where streams and events allow.
    Early = 1,
    /// Some of it early, by seed.
    Seeded = 2,
}

impl Emulator {
    /// The emulator, if it is what the loader finds as the driver.
    fn find() -> Option<Emulator> {
        // SAFETY: a name that ends in zero; RTLD_NOW.
        let library = unsafe { dlopen(c"libcuda.so.1".as_ptr(), 2) };
        // SAFETY: a library that was opened, a name that ends in zero.
        let is_ours =
            !library.is_null() && !unsafe { dlsym(library, c"trail_emu_reset".as_ptr()) }.is_null();
        is_ours.then_some(Emulator { library })
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: `find` opened the library; it is never closed.
        let symbol = unsafe { dlsym(self.library, name.as_ptr()) };
        assert!(!symbol.is_null(), "the emulator has no {name:?}");
        symbol
    }

    fn call(&self, name: &CStr) -> u64 {
        // SAFETY: control functions without arguments return an integer in a register, or nothing,
        // which is then ignored.
        let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(self.symbol(name)) };
        function()
    }

    fn set(&self, name: &CStr, value: u64) {
        // SAFETY: control functions with one argument take an integer of at most 64 bits in a
        // register.
        let function: extern "C" fn(u64) = unsafe { std::mem::transmute(self.symbol(name)) };
        function(value);
    }

    /// Forgets findings, planned failures and a broken context's error.
    pub fn reset(&self) {
        self.call(c"trail_emu_reset");
    }

    /// Sets the seed of every choice.
    pub fn seed(&self, seed: u64) {
        self.set(c"trail_emu_seed", seed);
    }

    /// Sets when queued work runs.
    pub fn order(&self, order: Order) {
        self.set(c"trail_emu_order", order as u64);
    }

    /// Sets whether queued work runs after a while although no call waits for it (the default).
    /// Without it the late order does not depend on the speed of the host; a host that polls memory
    /// needs it.
    pub fn background(&self, on: bool) {
        self.set(c"trail_emu_background", u64::from(on));
    }

    /// Makes the device another chip; devices that are opened later see it.
    pub fn chip(&self, chip: Chip) {
        self.set(c"trail_emu_chip", chip as u64);
    }

    /// Makes the device an H100, which runs Hopper's code.
    pub fn hopper(&self) {
        self.chip(Chip::H100);
    }

    /// Sets the version of the driver: 1000 * major + 10 * minor of its CUDA.
    pub fn driver(&self, version: u32) {
        self.set(c"trail_emu_driver", u64::from(version));
    }

    /// Sets the number of multiprocessors that the device says it has.
    pub fn multiprocessors(&self, count: u32) {
        self.set(c"trail_emu_multiprocessors", u64::from(count));
    }

    /// Sets the device's memory.
    pub fn memory(&self, bytes: u64) {
        self.set(c"trail_emu_memory", bytes);
    }

    /// Sets the host memory that can be pinned.
    pub fn host_memory(&self, bytes: u64) {
        self.set(c"trail_emu_host_memory", bytes);
    }

    /// Sets the warp instructions after which a launch in which no block ends is given up.
    pub fn patience(&self, instructions: u64) {
        self.set(c"trail_emu_patience", instructions);
    }

    /// Makes the `nth` kernel that begins from now never end.
    pub fn hang(&self, nth: u64) {
        self.fail(Failing::Hang, nth, 1);
    }

    /// Ends the context with all that it holds, as the end of a process does: after a hang what
    /// used it is leaked.
    pub fn forget_context(&self) {
        self.call(c"trail_emu_forget_context");
    }

    /// Makes the `nth` `what` from now (1 is the next) fail with a driver error code.
    pub fn fail(&self, what: Failing, nth: u64, code: u32) {
        // SAFETY: the signature of `trail_emu_fail`.
        let function: extern "C" fn(u32, u64, u32) -> u32 =
            unsafe { std::mem::transmute(self.symbol(c"trail_emu_fail")) };
        assert_eq!(function(what as u32, nth, code), 0);
    }

    /// Loses the device: every call gives `code`; 0 brings it back.
    pub fn lose_device(&self, code: u32) {
        self.set(c"trail_emu_lose_device", u64::from(code));
    }

    /// Number of allocations that were not freed.
    pub fn live_allocations(&self) -> u64 {
        self.call(c"trail_emu_live_allocations")
    }

    /// Thread instructions executed so far.
    pub fn executed(&self) -> u64 {
        self.call(c"trail_emu_executed")
    }

    /// Kernels run so far.
    pub fn launches(&self) -> u64 {
        self.call(c"trail_emu_launches")
    }

    /// Writes of streams that were done while a cooperative launch filled the chip.
    pub fn writes_beside(&self) -> u64 {
        self.call(c"trail_emu_writes_beside")
    }

    /// Runs one queued operation, or lets a posted copy arrive; returns true if there was one.
    pub fn step(&self) -> bool {
        self.call(c"trail_emu_step") & 1 == 1
    }

    /// Everything found since the session began, or since the last call.
    pub fn take_findings(&self) -> Vec<String> {
        // SAFETY: the signature of `trail_emu_finding`.
        let finding: unsafe extern "C" fn(u64, *mut c_char, usize) -> usize =
            unsafe { std::mem::transmute(self.symbol(c"trail_emu_finding")) };
        let count = self.call(c"trail_emu_finding_count");
        let mut texts = Vec::new();
        for index in 0..count {
            let mut text = vec![0u8; 4096];
            // SAFETY: `text` has as many bytes as it says.
            let length = unsafe { finding(index, text.as_mut_ptr().cast(), text.len()) };
            text.truncate(length.min(4095));
            texts.push(String::from_utf8_lossy(&text).into_owned());
        }
        self.call(c"trail_emu_clear_findings");
        texts
    }
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

thread_local! {
    /// This thread has a session open: a second one would never get the lock.
    static OPEN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A test's hold of the device: one test of a binary runs at a time, since findings and a broken
/// context are the process's.
pub struct Session {
    emulator: Option<Emulator>,
    _alone: MutexGuard<'static, ()>,
}

/// Opens a session; declare it before anything that holds the context. On the emulator choices are
/// seeded by the test's name and `TRAIL_EMU_SEED`.
///
/// # Panics
/// When there is neither the emulator nor a real driver, or when this thread has a session open
/// already.
#[must_use]
pub fn session() -> Session {
    assert!(!OPEN.get(), "this test has a session open already");
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|broken| broken.into_inner());
    let emulator = Emulator::find();
    assert!(
        emulator.is_some() || wants_real(),
        "the emulator is not the driver: does the file say trail_cuda_emulator::on_emulator!()?"
    );
    if let Some(emulator) = emulator {
        emulator.reset();
        emulator.seed(seed());
    }
    OPEN.set(true);
    Session { emulator, _alone: alone }
}

fn seed() -> u64 {
    let given: u64 =
        std::env::var("TRAIL_EMU_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("");
    name.bytes().fold(given ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

impl Session {
    /// The emulator's controls; `None` on a real driver.
    #[must_use]
    pub fn emulator(&self) -> Option<Emulator> {
        self.emulator
    }

    /// Findings so far, taken out: the session will not fail for them. For tests that expect some.
    #[must_use]
    pub fn take_findings(&self) -> Vec<String> {
        self.emulator.map_or_else(Vec::new, |emulator| emulator.take_findings())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        OPEN.set(false);
        let Some(emulator) = self.emulator else { return };
        let live = emulator.live_allocations();
        let findings = emulator.take_findings();
        emulator.reset();
        if !std::thread::panicking() {
            assert!(findings.is_empty(), "the emulator found:\n{}", findings.join("\n"));
            assert_eq!(live, 0, "allocations left unfreed");
        }
    }
}
