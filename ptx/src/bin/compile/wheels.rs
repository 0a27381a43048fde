//! Locates NVIDIA's wheels, without a CUDA toolkit: NVRTC and ptxas of one CUDA version, a newer
//! ptxas for Blackwell in a separate folder (its wheel has the same paths), and nvdisasm, which
//! has wheels from 13.2 on and reads older code.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Commands that install missing wheels.
const PIP: &str = "pip install nvidia-cuda-nvrtc-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131 \
                   nvidia-cuda-nvdisasm==13.5.37, and pip install --target FOLDER/blackwell \
                   nvidia-cuda-nvcc-cu12==12.8.93, where FOLDER is the site-packages of the others";

/// Paths of the tools.
pub(crate) struct Wheels {
    /// NVRTC's shared library.
    pub(crate) nvrtc: PathBuf,
    /// The assembler.
    pub(crate) ptxas: PathBuf,
    /// The assembler for Blackwell.
    pub(crate) ptxas_blackwell: PathBuf,
    /// The disassembler.
    pub(crate) nvdisasm: PathBuf,
}

/// Locates the wheels in `TRAIL_CUDA_WHEELS` (a site-packages folder), or those of the active
/// Python.
pub(crate) fn find() -> Result<Wheels, String> {
    let candidates = match std::env::var_os("TRAIL_CUDA_WHEELS") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => site_packages(),
    };
    let missing = || {
        format!(
            "NVRTC and ptxas 12.4, ptxas 12.8 and nvdisasm 13.5 not found (looked in {candidates:?}): {PIP}, or name their site-packages in TRAIL_CUDA_WHEELS"
        )
    };
    candidates.iter().find_map(|folder| in_folder(folder)).ok_or_else(missing)
}

fn in_folder(folder: &Path) -> Option<Wheels> {
    let nvidia = folder.join("nvidia");
    let wheels = Wheels {
        nvrtc: nvidia.join("cuda_nvrtc/lib/libnvrtc.so.12"),
        ptxas: nvidia.join("cuda_nvcc/bin/ptxas"),
        ptxas_blackwell: folder.join("blackwell/nvidia/cuda_nvcc/bin/ptxas"),
        nvdisasm: nvidia.join("cu13/bin/nvdisasm"),
    };
    let all = [&wheels.nvrtc, &wheels.ptxas, &wheels.ptxas_blackwell, &wheels.nvdisasm];
    all.iter().all(|path| path.exists()).then_some(wheels)
}

/// Import folders of the active Python.
fn site_packages() -> Vec<PathBuf> {
    let script = "import sys; print('\\n'.join(path for path in sys.path if path))";
    let output = ["python3", "python"]
        .iter()
        .find_map(|python| Command::new(python).args(["-c", script]).output().ok());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().lines().map(PathBuf::from).collect()
}
