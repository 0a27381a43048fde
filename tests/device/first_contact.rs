//! Drivers and devices that the kernels cannot run on, and those that they have not seen: `auto`
//! gives the CPU's answer with the reason, `cuda` one line, and neither a panic.

use std::os::unix::fs::symlink;

use crate::common::assert_refused;
use crate::gpu::{KV, PROMPT, trail_rt};

/// Room for the context, and not for the model's weights.
const FULL: &str = "541065216";

/// Answers on the device `name` with `environment`: text and stderr.
fn answer(name: &str, environment: &[(&str, &str)]) -> (String, String) {
    let output = trail_rt(&[&PROMPT[..], &KV, &["--device", name]].concat(), environment);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{environment:?}: {errors}");
    (String::from_utf8_lossy(&output.stdout).into_owned(), errors)
}

/// Checks that the GPU is refused in one line that `says` why, and that `auto` chooses the CPU.
fn falls_back(environment: &[(&str, &str)], says: &str) {
    let (expected, _) = answer("cpu", &[]);
    let (text, errors) = answer("auto", environment);
    assert_eq!(text, expected, "{environment:?}");
    let is_reason = |line: &&str| {
        line.contains("warning: ")
            && line.contains(says)
            && line.ends_with("; the CPU runs the model")
    };
    assert_eq!(errors.lines().filter(is_reason).count(), 1, "{environment:?}: {errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    let arguments = [&PROMPT[..], &KV, &["--device", "cuda"]].concat();
    assert_refused(&trail_rt(&arguments, environment), 1, says);
}

#[test]
fn a_device_before_ampere_is_not_used() {
    falls_back(&[("TRAIL_EMU_CHIP", "t4")], "compute capability 7.5");
}

#[test]
fn an_old_driver_is_not_used() {
    falls_back(&[("TRAIL_EMU_DRIVER", "11040")], "the NVIDIA driver is of CUDA 11.4");
    let thor = [("TRAIL_EMU_DRIVER", "12030"), ("TRAIL_EMU_CHIP", "thor")];
    falls_back(&thor, "which one of CUDA 12.4 or newer can (driver 550)");
}

#[test]
fn a_full_device_is_not_used() {
    falls_back(&[("TRAIL_EMU_MEMORY", FULL)], "weights with one KV block take");
    // No room for the context, or for the kernels.
    let says = "CUDA_ERROR_OUT_OF_MEMORY (2); the GPU is full";
    falls_back(&[("TRAIL_EMU_MEMORY", "104857600")], says);
    falls_back(&[("TRAIL_EMU_FAIL", "context:1:46")], "another program holds the GPU");
}

#[test]
fn a_library_that_is_no_driver_is_not_used() {
    falls_back(&[("TRAIL_EMU_FAIL", "lost:34")], "CUDA_ERROR_STUB_LIBRARY (34); the library found");
    // The C library under the driver's name has none of its functions.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the process's own");
    let library = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let library = library.into_iter().find(|path| path.contains("libc.so")).expect("a C library");
    let folder = std::env::temp_dir().join(format!("trail-no-driver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    symlink(library, folder.join("libcuda.so")).expect("a link");
    let path = folder.to_str().expect("UTF-8");
    falls_back(&[("LD_LIBRARY_PATH", path)], "libcuda has no cuInit");
    std::fs::remove_dir_all(folder).expect("the test's own folder");
}

#[test]
fn a_driver_without_memory_writes_of_streams_is_not_used() {
    falls_back(&[("TRAIL_EMU_WITHOUT", "memops")], "the driver has no memory writes of streams");
}

#[test]
fn a_device_without_cooperative_launches_gives_the_cpus_answer_with_a_warning() {
    let (expected, _) = answer("cpu", &[]);
    let kernels = ["--device", "cuda", "--megakernel"];
    let arguments = [&PROMPT[..], &KV, &kernels].concat();
    let output = trail_rt(&arguments, &[("TRAIL_EMU_WITHOUT", "cooperative")]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{errors}");
    let warning = "warning: the GPU holds 0 of ";
    assert_eq!(errors.lines().filter(|line| line.starts_with(warning)).count(), 1, "{errors}");
}

#[test]
fn chips_that_were_never_tried_give_the_cpus_answer() {
    let (expected, _) = answer("cpu", &[]);
    for chip in ["l4", "rtx4090", "b200", "rtx5090", "thor"] {
        let (text, errors) = answer("cuda", &[("TRAIL_EMU_CHIP", chip)]);
        assert_eq!(text, expected, "{chip}: {errors}");
    }
}

#[test]
fn the_doctor_says_which_driver_is_needed_and_what_is_not_used() {
    let report = |environment: &[(&str, &str)]| {
        let output = trail_rt(&["doctor"], environment);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let good = report(&[]);
    assert!(good.contains("CUDA 12.4; the kernels need 12.0 or newer"), "{good}");
    assert!(good.contains("will be used cuda:0"), "{good}");
    let old = report(&[("TRAIL_EMU_CHIP", "t4")]);
    assert!(old.contains("not used: cuda:0 (trail CUDA emulator (sm_75)) has compute"), "{old}");
    assert!(old.contains("will be used cpu"), "{old}");
}
