//! One source compiled for two widths of vector instructions.

/// Compiles a function twice, for the baseline and for AVX2, and selects one at each call.
///
/// The body should loop with `for`: functions called by `Iterator::sum` and others may not be
/// inlined, and would be compiled without AVX2.
macro_rules! widest {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block) => {
        $(#[$doc])*
        pub(super) fn $name($($arg: $type),*) -> $result {
            #[inline(always)]
            fn portable($($arg: $type),*) -> $result $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) -> $result {
                    portable($($arg),*)
                }
                if trail_platform::Isa::Avx2.is_available() {
                    // SAFETY: `avx2` requires only the CPU feature, which was checked above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            portable($($arg),*)
        }
    };
}
pub(super) use widest;
