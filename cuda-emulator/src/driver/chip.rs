//! The chips that the stand-in can be.

/// Properties of a chip that programs ask for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chip {
    /// As the device calls itself.
    pub(crate) name: &'static str,
    /// Compute capability.
    pub(crate) capability: (i32, i32),
    /// Multiprocessors, unless a test sets another number.
    pub(crate) multiprocessors: u32,
    /// Most shared memory of a block, bytes.
    pub(crate) shared_per_block: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub(crate) shared_per_multiprocessor: u32,
    /// Bytes of the L2 cache.
    pub(crate) l2_bytes: i32,
    /// Target of the machine code that it takes, of which the stand-in runs the text.
    pub(crate) target: Option<&'static str>,
}

/// NVIDIA A100 with 40 MiB of L2. It refuses machine code, so that programs give it text.
pub(crate) static A100: Chip = Chip {
    name: "trail CUDA emulator (sm_80)",
    capability: (8, 0),
    multiprocessors: 108,
    shared_per_block: 163 << 10,
    shared_per_multiprocessor: 164 << 10,
    l2_bytes: 40 << 20,
    target: None,
};

/// NVIDIA H100 SXM.
pub(crate) static H100: Chip = Chip {
    name: "trail CUDA emulator (sm_90a)",
    capability: (9, 0),
    multiprocessors: 132,
    shared_per_block: 227 << 10,
    shared_per_multiprocessor: 228 << 10,
    l2_bytes: 50 << 20,
    target: Some("sm_90a"),
};

impl Chip {
    /// The chip of name `name`, such as `h100`.
    pub(crate) fn named(name: &str) -> Option<&'static Chip> {
        match name {
            "a100" => Some(&A100),
            "h100" => Some(&H100),
            _ => None,
        }
    }
}
