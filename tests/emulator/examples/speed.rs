//! `cargo run --release -p trail-cuda-emulator --example speed`: thread instructions per second and
//! core, for arithmetic in registers, for shared and global memory with all checks, and for
//! products of matrices.

use std::ffi::{CString, c_void};

use cudarc::driver::{CudaContext, result};

trail_cuda_emulator::on_emulator!();

fn main() {
    let session = trail_cuda_emulator::session();
    let emulator = session.emulator().expect("the emulator");
    let context = CudaContext::new(0).expect("a context");
    let text = CString::new(include_str!("../tests/emulator/ptx/semantics.ptx")).expect("text");
    // SAFETY: text that ends in zero; allocations are freed below; the arguments are each kernel's.
    unsafe {
        let module = result::module::load_data(text.as_ptr().cast()).expect("a module");
        let (out, input) = (
            result::malloc_sync(64 * 256 * 4).expect("memory"),
            result::malloc_sync(4096 * 16).expect("memory"),
        );
        result::memset_d8_sync(input, 0, 4096 * 16).expect("a fill");
        for name in ["busy_registers", "busy_memory", "busy_matrix"] {
            let function =
                result::module::get_function(module, CString::new(name).expect("a name"))
                    .expect("a kernel");
            let rounds = 2000i32;
            let mut arguments = vec![std::ptr::from_ref(&out).cast_mut().cast::<c_void>()];
            if name == "busy_memory" {
                arguments.push(std::ptr::from_ref(&input).cast_mut().cast());
            }
            arguments.push(std::ptr::from_ref(&rounds).cast_mut().cast());
            let (before, begin) = (emulator.executed(), std::time::Instant::now());
            result::launch_kernel(
                function,
                (64, 1, 1),
                (256, 1, 1),
                0,
                std::ptr::null_mut(),
                &mut arguments,
            )
            .expect("a launch");
            result::memcpy_dtoh_sync(&mut [0u8; 4], out).expect("a copy");
            let seconds = begin.elapsed().as_secs_f64();
            let instructions = (emulator.executed() - before) as f64;
            let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
            println!(
                "{name}: {:.0} M thread instructions/s on {cores} cores ({instructions:.2e} in {seconds:.3} s)",
                instructions / seconds / 1e6
            );
        }
        result::free_sync(out).expect("freed");
        result::free_sync(input).expect("freed");
        result::module::unload(module).expect("unloaded");
    }
    drop((context, session));
}
