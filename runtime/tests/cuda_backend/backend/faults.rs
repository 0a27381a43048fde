//! Failures are reported clearly: in turn each allocation and launch, a device that is lost, work
//! that is dropped in flight. `TRAIL_SWEEP=all` tries every one; a sample otherwise.

use super::play::{Request, play};
use super::receivers::Keeper;
use super::taps_options;
use super::{AHEAD, Schedule, models, options, requests};
use cudarc::driver::sys::CUresult;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trail_cuda_emulator::{Failing, Order};
use trail_runtime::cuda::{CudaBackend, CudaError, CudaOptions};
use trail_runtime::model::Model;

/// Of so many failures in a row one is tried.
fn stride(sample: usize) -> usize {
    if std::env::var("TRAIL_SWEEP").is_ok_and(|all| all == "all") { 1 } else { sample }
}

fn open(model: &Arc<Model>, options: &CudaOptions) -> Result<CudaBackend, CudaError> {
    let receiver = Some(Arc::new(Keeper::default()) as _);
    CudaBackend::new(model, options, receiver, &mut |_| ())
}

/// One clear line.
fn check_line(error: &str) {
    assert!(error.lines().count() == 1 && (20..600).contains(&error.len()), "{error:?}");
}

/// A small device, few requests.
fn small() -> (Arc<Model>, Vec<Request>) {
    let model = Arc::new(models::grouped());
    let requests = requests(model.config.vocab_size)[..3].to_vec();
    (model, requests)
}

#[test]
fn cuda_each_allocation_in_turn_finds_no_room() {
    let (model, _) = small();
    let mut broken = 0;
    for nth in (1..).step_by(stride(4)) {
        let session = trail_cuda_emulator::session();
        let Some(emulator) = session.emulator() else { return };
        emulator.fail(Failing::Allocation, nth, CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32);
        let options = CudaOptions { host_kv_bytes: 1 << 20, megakernel: true, ..taps_options() };
        let Err(error) = open(&model, &options) else { break };
        let line = error.to_string();
        check_line(&line);
        assert!(line.contains("out of") && line.contains("bytes needed"), "{nth}: {line}");
        assert_eq!(emulator.live_allocations(), 0, "{nth}: {line}");
        broken += 1;
    }
    assert!(broken >= 20 / stride(4), "{broken} allocations");
}

#[test]
fn cuda_a_launch_fails() {
    let (model, requests) = small();
    for graphs in [false, true] {
        for nth in (1..=61).step_by(stride(30)) {
            let session = trail_cuda_emulator::session();
            let Some(emulator) = session.emulator() else { return };
            let mut backend = open(&model, &CudaOptions { graphs, ..taps_options() }).unwrap();
            let code = CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
            emulator.fail(Failing::Launch, nth as u64, code as u32);
            let schedule = Schedule { taps: true, ..AHEAD };
            let fault = play(&mut backend, &requests, schedule, &mut |_, _| ()).err();
            let fault = fault.expect("a launch failed");
            check_line(&fault.0);
            assert!(fault.0.contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)"), "{fault}");
            drop(backend);
            assert_eq!(emulator.live_allocations(), 0, "{fault}");
        }
    }
}

/// A thread that polls for a step's tokens notices that the device is gone.
#[test]
fn cuda_the_device_is_lost_while_the_host_polls() {
    let (model, requests) = small();
    for at in [1, 2, 6] {
        let session = trail_cuda_emulator::session();
        let Some(emulator) = session.emulator() else { return };
        // Nothing runs before somebody waits.
        emulator.order(Order::Late);
        let mut backend = open(&model, &taps_options()).unwrap();
        let begin = Instant::now();
        let fault =
            play(&mut backend, &requests, Schedule { taps: true, ..AHEAD }, &mut |step, _| {
                if step == at {
                    emulator.lose_device(CUresult::CUDA_ERROR_ECC_UNCORRECTABLE as u32);
                }
            });
        let fault = fault.err().expect("a fault");
        check_line(&fault.0);
        assert!(fault.0.contains("CUDA_ERROR_ECC_UNCORRECTABLE"), "{fault}");
        drop(backend);
        assert!(begin.elapsed() < Duration::from_secs(10), "it hung: {fault}");
    }
}

/// Steps in flight when the backend is dropped: nothing is freed under a kernel.
#[test]
fn cuda_dropped_with_steps_under_way() {
    let (model, requests) = small();
    for at in [1, 3] {
        let session = trail_cuda_emulator::session();
        if let Some(emulator) = session.emulator() {
            emulator.order(Order::Late);
        }
        let mut backend = open(&model, &options()).unwrap();
        let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            play(&mut backend, &requests, AHEAD, &mut |step, _| {
                if step == at {
                    std::panic::resume_unwind(Box::new(()));
                }
            })
        }));
        assert!(stopped.is_err());
        drop(backend);
        if let Some(emulator) = session.emulator() {
            assert_eq!(emulator.live_allocations(), 0);
        }
    }
}
