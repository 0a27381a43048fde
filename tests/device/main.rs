//! The program on the emulator of the CUDA driver: it inherits the library path, which begins with
//! the emulator's folder, and loads the emulator as it would load the driver.

#[path = "../common/mod.rs"]
mod common;
mod first_contact;
mod gpu;
mod hangs;
mod kernels;
mod transfers;

trail_cuda_emulator::on_emulator!();
