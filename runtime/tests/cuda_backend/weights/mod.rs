//! Proof of the weights' way to the device: what arrives is, bit for bit, the file's values rounded
//! to bf16 in the order of the expected, whatever the file holds and however the way is cut; and
//! what fails on the way is said and leaves nothing behind.

mod scene;

use cudarc::driver::sys::CUresult;
use scene::{Arrived, Shape, TINY_SLOT, mixed, model, odd, of_family, upload};
use std::sync::Arc;
use trail_cuda_emulator::{Emulator, Failing, Order};
use trail_runtime::cuda::weights::UploadPool;
use trail_runtime::cuda::{CudaError, Device, DeviceWeights};
use trail_runtime::model::{Architecture, Dtype, LayerWeights, Model};

/// Every source type, sizes that fill no tile, heads of both widths; more pieces than buffers, so
/// that buffers go round.
#[test]
fn weights_arrive_in_the_order_of_the_kernels() {
    let _session = trail_cuda_emulator::session();
    let device = Arc::new(Device::open(0).unwrap());
    for (seed, dtype) in [Dtype::Bf16, Dtype::F16, Dtype::F32].into_iter().enumerate() {
        for shape in [odd(64, true), odd(64, false), odd(128, false)] {
            let model = model(&shape, dtype, seed as u64);
            for threads in [1, 3] {
                let weights =
                    upload(&device, &model, UploadPool { threads, buffer_bytes: TINY_SLOT });
                Arrived::read(&device, &model, &weights.unwrap()).check(&model);
            }
        }
    }
}

/// The same in one large buffer, and in each order of the driver's queue: what reads too soon finds
/// poison.
#[test]
fn no_order_of_the_queue_changes_what_arrives() {
    let session = trail_cuda_emulator::session();
    let device = Arc::new(Device::open(0).unwrap());
    let model = model(&odd(64, false), Dtype::F16, 9);
    for order in [Order::Late, Order::Early, Order::Seeded] {
        if let Some(emulator) = session.emulator() {
            emulator.order(order);
        }
        for buffer_bytes in [TINY_SLOT, 1 << 24] {
            let weights = upload(&device, &model, UploadPool { threads: 2, buffer_bytes }).unwrap();
            Arrived::read(&device, &model, &weights).check(&model);
        }
    }
}

/// Matrices of one product that differ in type are rounded on the host instead.
#[test]
fn sources_of_different_types_are_taken() {
    let _session = trail_cuda_emulator::session();
    let device = Arc::new(Device::open(0).unwrap());
    let model = mixed(&odd(64, false));
    let weights =
        upload(&device, &model, UploadPool { threads: 2, buffer_bytes: TINY_SLOT }).unwrap();
    Arrived::read(&device, &model, &weights).check(&model);
}

/// Rows of adjacent pairs arrive in the order of halves; biases and norms of heads arrive.
#[test]
fn families_arrive_with_their_terms() {
    let _session = trail_cuda_emulator::session();
    let device = Arc::new(Device::open(0).unwrap());
    for architecture in [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3] {
        for shape in [odd(64, false), odd(128, true)] {
            let model = of_family(&shape, architecture);
            let pool = UploadPool { threads: 2, buffer_bytes: TINY_SLOT };
            let weights = upload(&device, &model, pool).unwrap();
            Arrived::read(&device, &model, &weights).check(&model);
        }
    }
}

#[test]
fn progress_ends_with_all_bytes_of_the_file() {
    let _session = trail_cuda_emulator::session();
    let device = Arc::new(Device::open(0).unwrap());
    let model = model(&odd(64, true), Dtype::Bf16, 3);
    let mut seen = Vec::new();
    let weights = DeviceWeights::upload(&device, &model, &mut |progress| seen.push(progress));
    drop(weights.unwrap());
    let last = seen.last().unwrap();
    let norms = (2 * model.config.num_layers + 1) * model.config.hidden_size * 4;
    let layers = model.weights.layers.iter().flat_map(LayerWeights::matrices);
    let matrices: usize =
        layers.chain([&model.weights.embed]).map(|tensor| tensor.bytes().len()).sum();
    assert_eq!(
        (last.what, last.done, last.total),
        ("weights", last.total, (norms + matrices) as u64)
    );
    assert!(seen.is_sorted_by(|a, b| a.done < b.done));
}

/// A model that the kernels cannot run is refused by its name in config.json, and nothing is
/// allocated for it.
#[test]
fn models_that_the_kernels_do_not_cover_are_refused_by_name() {
    let session = trail_cuda_emulator::session();
    let device = Arc::new(Device::open(0).unwrap());
    let cases = [
        (
            Shape { head_dim: 16, ..odd(64, true) },
            "head_dim = 16: the CUDA kernels take heads of 64",
        ),
        (
            Shape { hidden: 68, ..odd(64, true) },
            "hidden_size = 68: the CUDA kernels take multiples",
        ),
        (Shape { inner: 100, ..odd(64, true) }, "intermediate_size = 100: the CUDA kernels take"),
    ];
    for (shape, says) in cases {
        let model = model(&shape, Dtype::Bf16, 1);
        if let Some(emulator) = session.emulator() {
            emulator.fail(Failing::Allocation, 1, CUresult::CUDA_ERROR_UNKNOWN as u32);
        }
        let error = upload(&device, &model, UploadPool::default()).err().expect("a refusal");
        assert!(matches!(error, CudaError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.to_string().ends_with("--device cpu runs it"), "{error}");
        if let Some(emulator) = session.emulator() {
            emulator.reset();
        }
    }
}

/// Uploads while the first, the second, ... `what` fails, until none is left to fail; how many
/// failed.
fn sweep(emulator: Emulator, what: Failing, code: CUresult, check: impl Fn(&CudaError)) -> u64 {
    let device = Arc::new(Device::open(0).unwrap());
    device.load_all().unwrap();
    let model: Model = model(&odd(64, true), Dtype::Bf16, 5);
    for nth in 1.. {
        emulator.fail(what, nth, code as u32);
        let uploaded = upload(&device, &model, UploadPool { threads: 2, buffer_bytes: TINY_SLOT });
        match uploaded {
            Err(error) => check(&error),
            Ok(weights) => {
                emulator.reset();
                Arrived::read(&device, &model, &weights).check(&model);
                return nth - 1;
            }
        }
        assert_eq!(emulator.live_allocations(), 0, "after {what:?} {nth}");
        assert!(emulator.take_findings().is_empty());
        assert!(device.parked().is_none());
    }
    unreachable!()
}

#[test]
fn every_allocation_that_fails_is_reported_and_leaves_nothing() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let failed =
        sweep(emulator, Failing::Allocation, CUresult::CUDA_ERROR_OUT_OF_MEMORY, |error| {
            assert!(matches!(error, CudaError::OutOfMemory(_)), "{error}");
            assert!(error.to_string().contains(" bytes needed"), "{error}");
        });
    // The weights; two buffers of two threads, pinned and on the device.
    assert_eq!(failed, 9);
}

#[test]
fn every_copy_and_launch_that_fails_is_reported_and_leaves_nothing() {
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let copies = sweep(emulator, Failing::Copy, CUresult::CUDA_ERROR_INVALID_VALUE, |error| {
        let wanted = "copying weights to the device: CUDA_ERROR_INVALID_VALUE (1)";
        assert_eq!(error.to_string(), wanted);
    });
    let launches = sweep(emulator, Failing::Launch, CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, |error| {
        let text = error.to_string();
        assert!(text.starts_with("shuffle_bf16(") && text.contains("LAUNCH_TIMEOUT"), "{text}");
    });
    assert!(launches > 10 && copies > launches, "{copies} copies, {launches} launches");
}
