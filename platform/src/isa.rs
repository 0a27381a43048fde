//! CPU instruction sets with kernels of their own: names, parsing, detection.

use std::fmt;
use std::str::FromStr;

/// A CPU instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isa {
    /// The widest that pays on this CPU: see [`Isa::detect`].
    #[default]
    Auto,
    /// Plain Rust, any CPU.
    Portable,
    /// AVX2, FMA and F16C: 8 lanes of f32.
    Avx2,
    /// AVX-512F, BW and VL: 16 lanes of f32. With VL, a reduction can use all 32 registers at every
    /// width; without, one after a tile of 24 sums goes over the stack.
    Avx512,
    /// Arm's Advanced SIMD: 8 lanes of f32 in two registers.
    Neon,
}

/// True if this CPU has the named feature of its architecture, which the caller is compiled for.
#[macro_export]
macro_rules! cpu_has {
    ($feature:tt) => {{
        #[cfg(target_arch = "x86_64")]
        let has = std::arch::is_x86_feature_detected!($feature);
        #[cfg(target_arch = "aarch64")]
        let has = std::arch::is_aarch64_feature_detected!($feature);
        has
    }};
}

impl Isa {
    /// Every value, in the order of the declaration.
    const ALL: [Isa; 5] = [Isa::Auto, Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// Returns true if this CPU can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Auto | Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => cpu_has!("avx2") && cpu_has!("fma") && cpu_has!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => cpu_has!("avx512f") && cpu_has!("avx512bw") && cpu_has!("avx512vl"),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => cpu_has!("neon"),
            _ => false,
        }
    }

    /// The instruction set that [`Isa::Auto`] selects on this CPU. AVX-512 from Ice Lake and Zen 4
    /// on, which VBMI2 tells: earlier CPUs lower the clock of all threads of the core for it.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if Isa::Avx512.is_available() && cpu_has!("avx512vbmi2") {
            return Isa::Avx512;
        }
        let narrower = [Isa::Avx2, Isa::Neon].into_iter().find(|isa| isa.is_available());
        narrower.unwrap_or(Isa::Portable)
    }

    /// Replaces [`Isa::Auto`] by the detected instruction set. Fails if this CPU cannot run the one
    /// requested; a successful result is therefore the check that a `target_feature` call needs.
    pub fn resolve(self) -> Result<Isa, String> {
        match self {
            Isa::Auto => Ok(Isa::detect()),
            isa if isa.is_available() => Ok(isa),
            isa => Err(format!("this CPU has no {isa}")),
        }
    }

    /// The instruction sets that this CPU can run, narrowest first, without [`Isa::Auto`].
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().skip(1).filter(|isa| isa.is_available())
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Auto => "auto",
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Isa, String> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.to_string() == name)
            .ok_or_else(|| format!("unknown isa {name:?}: auto, portable, avx2, avx512 or neon"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_others_do_not() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
        assert!("sse2".parse::<Isa>().unwrap_err().contains("avx512"));
    }

    #[test]
    fn auto_resolves_to_what_the_cpu_has() {
        let resolved = Isa::Auto.resolve().unwrap();
        assert_ne!(resolved, Isa::Auto);
        assert!(Isa::available().any(|isa| isa == resolved));
        for isa in Isa::ALL {
            assert_eq!(isa.resolve().is_ok(), isa.is_available());
        }
    }
}
