//! The compiled CUDA kernels, and the table that names them.
//!
//! An explicit program (`cargo run -p trail-ptx --bin compile`) compiles `kernels/*.cu` to PTX and
//! cubins under `out/`, which are checked in with a manifest of the report of `ptxas`. This library
//! is data only: no CUDA, no dependency. A test recomputes each source's hash, so a kernel that was
//! edited and not compiled fails the build.

mod device_ptr;
pub mod hash;
pub mod header;
// The generated comments give shapes as `[rows, d]`, which rustdoc takes for links.
#[allow(rustdoc::broken_intra_doc_links)]
pub mod params;
mod table;

pub use device_ptr::DevicePtr;
pub use table::{FLAGS, MODULES};

/// Kernels that passed their tests, by device, as JSON: device -> {"arch": target, "kernels":
/// {name: hash of the code}}. Written by `cargo run -p trail-ptx --bin proofs` from the launches of
/// the tests.
pub const PROOFS: &str = include_str!("../proofs.json");

/// Modules with their sources, tools and flags, and the reports of ptxas and of the machine code,
/// as JSON: modules -> NAME -> entries -> KERNEL -> `resources` and `sass` -> target.
pub const MANIFEST: &str = include_str!("../manifest.json");

/// A chip family that code is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Ampere, and by binary compatibility Ada (8.x).
    Sm80,
    /// Hopper with architecture-specific instructions; runs on 9.0 only.
    Sm90a,
    /// Blackwell of data centers (10.x): sm_80's text, assembled.
    Sm100,
    /// Blackwell of workstations and desktops (12.x): the same.
    Sm120,
}

impl Target {
    /// All targets, in the order of their compilation.
    pub const ALL: [Target; 4] = [Target::Sm80, Target::Sm90a, Target::Sm100, Target::Sm120];

    /// Name of the target, as `ptxas` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
            Target::Sm100 => "sm_100",
            Target::Sm120 => "sm_120",
        }
    }

    /// The target of that name.
    pub fn named(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Returns true for targets that the pinned ptxas 12.4 does not know.
    pub const fn is_blackwell(self) -> bool {
        matches!(self, Target::Sm100 | Target::Sm120)
    }

    /// Largest number of bytes that `kernel` may spill, a thread. On sm_120 three kernels that use
    /// all 255 registers spill up to 36.
    pub fn max_spilled_bytes(self, kernel: &str) -> u32 {
        const SPILL: [&str; 3] =
            ["attention_prefill_hd128", "attention_prefill_split_hd128", "tiled_residual_256"];
        if self == Target::Sm120 && SPILL.contains(&kernel) { 36 } else { 0 }
    }

    /// The target whose cubins run on a device of compute capability `major.minor`.
    pub const fn of_device(major: i32, minor: i32) -> Option<Target> {
        match (major, minor) {
            (8, _) => Some(Target::Sm80),
            (9, 0) => Some(Target::Sm90a),
            (10, _) => Some(Target::Sm100),
            (12, _) => Some(Target::Sm120),
            _ => None,
        }
    }
}

/// A compiled `.cu` file.
#[derive(Debug)]
pub struct Module {
    /// File stem, with the prefix of its folder: `hopper/`, or `ladder/` of the teaching kernels.
    pub name: &'static str,
    /// Source path in the repository.
    pub source: &'static str,
    /// FNV-1a of the source and all it includes (see [`hash`]).
    pub source_hash: u64,
    /// Compiled code by target.
    pub images: &'static [Image],
    /// Launchable kernels.
    pub entries: &'static [Entry],
}

/// A module's code for one target.
#[derive(Debug)]
pub struct Image {
    /// Target of the compilation.
    pub target: Target,
    /// PTX text, for chips without a cubin here: sm_80's. The text of sm_90a is Hopper's alone, and
    /// Blackwell has no separate text.
    pub ptx: Option<&'static str>,
    /// Machine code.
    pub cubin: &'static [u8],
}

/// One launchable kernel.
#[derive(Debug)]
pub struct Entry {
    /// `extern "C"` name, unique over all modules.
    pub name: &'static str,
    /// Name of the struct of its only argument in [`params`].
    pub params: &'static str,
    /// Size of that argument in the PTX, bytes.
    pub param_bytes: u32,
    /// Alignment of that argument in the PTX, bytes.
    pub param_align: u32,
    /// Resource usage reported by `ptxas`, by target.
    pub resources: &'static [Resources],
}

/// Resource usage of a kernel, from `ptxas -v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Target of the compilation.
    pub target: Target,
    /// 32-bit registers per thread.
    pub registers: u32,
    /// Statically allocated shared memory, bytes per block.
    pub shared_bytes: u32,
    /// Stack frame, bytes per thread.
    pub stack_bytes: u32,
    /// Registers stored to local memory, bytes per thread: at most
    /// [`Target::max_spilled_bytes`], or the compile fails.
    pub spill_store_bytes: u32,
    /// Registers loaded back, bytes per thread: likewise.
    pub spill_load_bytes: u32,
    /// Hardware barriers per block.
    pub barriers: u32,
}

/// A parameter struct of `kernels/common/params.h`, as the generated [`params`] has it.
///
/// # Safety
/// `NAME` must be the struct's name in the header, and the type its exact C layout.
pub unsafe trait Parameters: Copy + 'static {
    /// The struct's name.
    const NAME: &'static str;
}

/// Lists the parameter structs of the generated [`params`].
macro_rules! parameters {
    ($($name:ident)*) => {
        $(
            // SAFETY: bindgen gave the struct its name and the C layout, and the module checks its
            // size and offsets.
            unsafe impl crate::Parameters for $name {
                const NAME: &'static str = stringify!($name);
            }
        )*

        /// Every kernel argument: name, size and alignment, bytes.
        pub const STRUCTS: &[(&str, usize, usize)] =
            &[$((stringify!($name), size_of::<$name>(), align_of::<$name>())),*];
    };
}
use parameters;

impl Image {
    /// FNV-1a of the code for this target: the PTX text for sm_80, which the emulator runs as well;
    /// machine code for the others.
    pub fn code_hash(&self) -> u64 {
        hash::fnv1a(hash::START, self.ptx.map_or(self.cubin, str::as_bytes))
    }
}

impl Module {
    /// The module's code for `target`.
    pub fn image(&self, target: Target) -> Option<&'static Image> {
        self.images.iter().find(|image| image.target == target)
    }

    /// PTX text that other chips compile at load: sm_80's, unless the module is for Hopper only.
    pub fn portable_ptx(&self) -> Option<&'static str> {
        self.image(Target::Sm80).and_then(|image| image.ptx)
    }
}

impl Entry {
    /// Resource usage of the kernel on `target`.
    pub fn on(&self, target: Target) -> Option<&'static Resources> {
        self.resources.iter().find(|resources| resources.target == target)
    }
}

/// The kernel named `name`, and the module it is in.
pub fn find(name: &str) -> Option<(&'static Module, &'static Entry)> {
    let in_module = |module: &'static Module| {
        module.entries.iter().find(|entry| entry.name == name).map(|entry| (module, entry))
    };
    MODULES.iter().find_map(in_module)
}
