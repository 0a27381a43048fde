//! `cargo run -p trail-cuda-emulator --example load -- FILE.ptx ...`: can the emulator run these
//! modules? Says which cannot, and why.

use std::ffi::CString;

use cudarc::driver::{CudaContext, result};

trail_cuda_emulator::on_emulator!();

fn main() {
    let context = CudaContext::new(0).expect("a context");
    let mut refused = 0;
    for path in std::env::args().skip(1) {
        let text = std::fs::read(&path).expect("a readable file");
        let text = CString::new(text).expect("text without zero bytes");
        // SAFETY: text that ends in zero.
        match unsafe { result::module::load_data(text.as_ptr().cast()) } {
            Ok(_) => println!("{path}: ok"),
            Err(error) => {
                refused += 1;
                println!("{path}: {error}");
            }
        }
    }
    drop(context);
    std::process::exit(i32::from(refused > 0));
}
