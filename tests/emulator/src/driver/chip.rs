//! The chips that the emulator can be.

/// Properties of a chip that programs ask for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chip {
    /// As the device calls itself.
    pub(crate) name: &'static str,
    /// Compute capability.
    pub(crate) capability: (i32, i32),
    /// Multiprocessors, unless a test sets another number.
    pub(crate) multiprocessors: u32,
    /// Resident threads of a multiprocessor.
    pub(crate) threads: u32,
    /// Resident blocks of a multiprocessor.
    pub(crate) blocks: u32,
    /// Most shared memory of a block, bytes.
    pub(crate) shared_per_block: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub(crate) shared_per_multiprocessor: u32,
    /// Bytes of the L2 cache.
    pub(crate) l2_bytes: i32,
    /// Device memory, bytes, unless a test sets another size.
    pub(crate) memory: u64,
    /// Target of the machine code that it takes; the emulator runs its text.
    pub(crate) target: Option<&'static str>,
}

/// NVIDIA A100 with 40 MiB of L2. It refuses machine code, so that programs give it text.
pub(crate) static A100: Chip = Chip {
    name: "trail CUDA emulator (sm_80)",
    capability: (8, 0),
    multiprocessors: 108,
    threads: 2048,
    blocks: 32,
    shared_per_block: 163 << 10,
    shared_per_multiprocessor: 164 << 10,
    l2_bytes: 40 << 20,
    memory: 80 << 30,
    target: None,
};

/// NVIDIA H100 SXM.
pub(crate) static H100: Chip = Chip {
    name: "trail CUDA emulator (sm_90a)",
    capability: (9, 0),
    multiprocessors: 132,
    threads: 2048,
    blocks: 32,
    shared_per_block: 227 << 10,
    shared_per_multiprocessor: 228 << 10,
    l2_bytes: 50 << 20,
    memory: 80 << 30,
    target: Some("sm_90a"),
};

/// NVIDIA L4, which takes machine code of sm_80.
static L4: Chip = Chip {
    name: "trail CUDA emulator (sm_89, L4)",
    capability: (8, 9),
    multiprocessors: 58,
    threads: 1536,
    blocks: 24,
    shared_per_block: 99 << 10,
    shared_per_multiprocessor: 100 << 10,
    l2_bytes: 48 << 20,
    memory: 24 << 30,
    target: Some("sm_80"),
};

/// NVIDIA GeForce RTX 4090, which takes machine code of sm_80.
static RTX4090: Chip = Chip {
    name: "trail CUDA emulator (sm_89, RTX 4090)",
    multiprocessors: 128,
    l2_bytes: 72 << 20,
    ..L4
};

/// NVIDIA B200, which takes machine code of sm_100.
static B200: Chip = Chip {
    name: "trail CUDA emulator (sm_100)",
    capability: (10, 0),
    multiprocessors: 148,
    l2_bytes: 126 << 20,
    memory: 180 << 30,
    target: Some("sm_100"),
    ..H100
};

/// NVIDIA GeForce RTX 5090, which takes machine code of sm_120.
static RTX5090: Chip = Chip {
    name: "trail CUDA emulator (sm_120, RTX 5090)",
    capability: (12, 0),
    multiprocessors: 170,
    l2_bytes: 96 << 20,
    memory: 32 << 30,
    target: Some("sm_120"),
    ..L4
};

/// NVIDIA Jetson Thor: no machine code was compiled for it.
static THOR: Chip = Chip {
    name: "trail CUDA emulator (sm_110, Thor)",
    capability: (11, 0),
    multiprocessors: 20,
    threads: 1536,
    blocks: 24,
    l2_bytes: 32 << 20,
    memory: 128 << 30,
    target: None,
    ..H100
};

/// NVIDIA T4, of Turing: the text of sm_80 is too new for it.
static T4: Chip = Chip {
    name: "trail CUDA emulator (sm_75)",
    capability: (7, 5),
    multiprocessors: 40,
    threads: 1024,
    blocks: 16,
    shared_per_block: 64 << 10,
    shared_per_multiprocessor: 64 << 10,
    l2_bytes: 4 << 20,
    memory: 16 << 30,
    target: None,
};

/// The chips by name, in the order of [`crate::harness::Chip`].
pub(crate) static CHIPS: [(&str, &Chip); 8] = [
    ("a100", &A100),
    ("h100", &H100),
    ("l4", &L4),
    ("rtx4090", &RTX4090),
    ("b200", &B200),
    ("t4", &T4),
    ("rtx5090", &RTX5090),
    ("thor", &THOR),
];

impl Chip {
    /// Returns true if the chip runs PTX of the text's `.target`: any of an earlier architecture,
    /// and one with an `a` on its own alone.
    pub(crate) fn runs(&self, text: &str) -> bool {
        let target = text.lines().find_map(|line| line.trim().strip_prefix(".target"));
        let target = target.and_then(|names| names.trim().strip_prefix("sm_")).unwrap_or_default();
        let end = target.find(|c: char| !c.is_ascii_digit()).unwrap_or(target.len());
        let Ok(wanted) = target[..end].parse::<i32>() else { return true };
        let own = self.capability.0 * 10 + self.capability.1;
        if target[end..].starts_with('a') { wanted == own } else { wanted <= own }
    }

    /// The chip of name `name`, such as `h100`.
    pub(crate) fn named(name: &str) -> Option<&'static Chip> {
        CHIPS.iter().find(|(known, _)| *known == name).map(|(_, chip)| *chip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_later_or_another_architecture_is_refused() {
        let runs = |chip: &Chip, target: &str| {
            chip.runs(&format!("//\n.version 8.4\n.target {target}\n.address_size 64\n"))
        };
        assert!(runs(&A100, "sm_80") && runs(&A100, "sm_75") && runs(&H100, "sm_80, debug"));
        assert!(runs(&H100, "sm_90a") && runs(&H100, "sm_90"));
        assert!(!runs(&A100, "sm_90a") && !runs(&A100, "sm_86") && !runs(&H100, "sm_100a"));
    }
}
