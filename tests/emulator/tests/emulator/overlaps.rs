//! Kernels that begin before their predecessors have ended (programmatic dependent launch): what
//! they read before `griddepcontrol.wait` is none of the predecessors' product.

use crate::common::{Gpu, Module};
use cudarc::driver::sys::{self, CUresult};

/// A kernel of one thread: copies a word, the wait and the release of the successor around it.
fn kernel(name: &str, before: &str, between: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 from, .param .u64 to)
{{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    {before}
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.global.u32 %r1, [%rd1];
    {between}
    st.global.u32 [%rd2], %r1;
    ret;
}}
"
    )
}

fn module() -> String {
    let (wait, release) = ("griddepcontrol.wait;", "griddepcontrol.launch_dependents;");
    let both = format!("{release} {wait}");
    let ordered = format!("{wait} {release}");
    let head = ".version 8.4\n.target sm_90a\n.address_size 64\n".to_owned();
    head + &kernel("plain", "", "")
        + &kernel("late", &both, "")
        + &kernel("ordered", &ordered, "")
        + &kernel("early", release, wait)
        + &kernel("never", release, "")
}

/// Launches that overlap, each with the words that it reads and writes.
type Launches<'a> = &'a [(&'a str, usize, usize)];

fn launch(module: &Module, name: &str, mut arguments: [u64; 2]) {
    // SAFETY: the type is plain data, for which zeros are valid.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = i32::from(name != "plain");
    let config = sys::CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        attrs: &raw mut attribute,
        numAttrs: 1,
        sharedMemBytes: 0,
        hStream: std::ptr::null_mut(),
    };
    let mut pointers = arguments.each_mut().map(|argument| std::ptr::from_mut(argument).cast());
    let function = module.function(name);
    // SAFETY: the arguments are the kernel's two addresses.
    let code = unsafe {
        sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut())
    };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

/// Findings of `launches` on a fresh context with four words.
fn findings(launches: Launches<'_>) -> Vec<String> {
    let session = trail_cuda_emulator::session();
    session.emulator().expect("the emulator").hopper();
    let gpu = Gpu::new();
    let loaded = gpu.load(&module()).unwrap();
    let words = gpu.upload(&[1u32, 2, 3, 4]);
    for &(name, from, to) in launches {
        launch(&loaded, name, [from, to].map(|word| words + 4 * word as u64));
    }
    if gpu.sync_code() == CUresult::CUDA_SUCCESS {
        gpu.free(words);
    }
    drop((loaded, gpu));
    let found = session.take_findings().into_iter();
    found.filter(|finding| !finding.starts_with("leak")).collect()
}

#[test]
fn a_read_of_what_the_predecessor_writes_is_found() {
    let found = findings(&[("plain", 0, 1), ("early", 1, 2)]);
    assert!(found[0].contains("access before griddepcontrol.wait"), "{found:?}");
    assert!(found[0].contains("may be at work"), "{found:?}");
}

/// The predecessor's predecessor may be at work, too, unless the one between waited for it first.
#[test]
fn a_read_of_what_an_earlier_kernel_writes_is_found() {
    let found = findings(&[("plain", 0, 1), ("late", 2, 3), ("early", 1, 2)]);
    assert!(found[0].contains("access before griddepcontrol.wait"), "{found:?}");
    assert_eq!(findings(&[("plain", 0, 1), ("ordered", 2, 3), ("early", 1, 2)]), [""; 0]);
}

#[test]
fn a_write_before_the_wait_is_found() {
    let found = findings(&[("plain", 0, 1), ("never", 2, 3)]);
    assert!(found[0].contains("access before griddepcontrol.wait"), "{found:?}");
}

#[test]
fn what_is_read_behind_the_wait_or_is_older_is_no_finding() {
    assert_eq!(findings(&[("plain", 0, 1), ("late", 1, 2), ("late", 2, 3)]), [""; 0]);
    assert_eq!(findings(&[("plain", 0, 1), ("plain", 2, 3), ("early", 1, 2)]), [""; 0]);
    assert_eq!(findings(&[("plain", 0, 1), ("early", 2, 3)]), [""; 0]);
}
