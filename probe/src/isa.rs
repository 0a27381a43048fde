//! The instruction set the kernels run on, as a value that is also the proof that the CPU has it.
//!
//! The fields are private and every constructor asks the CPU, so holding an [`Isa`] is what makes
//! calling a `target_feature` kernel sound (the way memchr's searchers do it).

/// Environment variable that asks for AVX-512 where the CPU has it; the only accepted value is `1`.
pub const AVX512_VARIABLE: &str = "TRAIL_AVX512";

/// An instruction set this CPU was seen to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(crate) Kind);

/// Which kernels an [`Isa`] selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Plain loops for the compiler to vectorise; present everywhere.
    pub const fn portable() -> Isa {
        Isa(Kind::Portable)
    }

    /// AVX2 with FMA, if this CPU has both.
    pub fn avx2() -> Option<Isa> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Some(Isa(Kind::Avx2));
        }
        None
    }

    /// AVX-512 (foundation instructions), if this CPU has it.
    pub fn avx512() -> Option<Isa> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return Some(Isa(Kind::Avx512));
        }
        None
    }

    /// AVX2 where the CPU has it, else the portable loops. AVX-512 is never chosen unasked: on
    /// many CPUs its clock penalty reaches the threads that share the core.
    pub fn detect() -> Isa {
        Isa::avx2().unwrap_or(Isa::portable())
    }

    /// [`Isa::detect`], or AVX-512 when [`AVX512_VARIABLE`] is `1` and the CPU has it. Reads the
    /// environment: for a program to call once at start.
    pub fn from_env() -> Isa {
        let asked = std::env::var_os(AVX512_VARIABLE).is_some_and(|value| value == "1");
        asked.then(Isa::avx512).flatten().unwrap_or_else(Isa::detect)
    }

    /// Every instruction set of this CPU that has kernels, slowest first.
    pub fn all() -> Vec<Isa> {
        [Some(Isa::portable()), Isa::avx2(), Isa::avx512()].into_iter().flatten().collect()
    }

    /// Its name in reports: `portable`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
