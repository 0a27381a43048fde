//! Instruction sets of the CPU kernels.

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isa {
    /// AVX2 where the CPU has it, else plain Rust.
    #[default]
    Auto,
    /// Plain Rust, any CPU.
    Portable,
    /// AVX2, FMA and F16C: 8 lanes.
    Avx2,
    /// AVX-512F: 16 lanes. Never chosen by `Auto`.
    Avx512,
}

impl Isa {
    /// Returns true if this CPU supports the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Auto | Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Isa::Auto => "auto",
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

impl std::str::FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Isa::Auto, Isa::Portable, Isa::Avx2, Isa::Avx512]
            .into_iter()
            .find(|isa| isa.to_string() == name)
            .ok_or_else(|| format!("unknown isa {name:?}: auto, portable, avx2 or avx512"))
    }
}
