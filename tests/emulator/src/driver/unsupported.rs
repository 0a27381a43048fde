//! Functions of the driver that are exported to say that they are missing.

use super::{Answer, error};

/// Says that `what` is not supported.
pub(crate) fn say(what: &str) -> Answer {
    eprintln!("trail-cuda-emulator: {what} is not supported");
    Err(error::NOT_SUPPORTED)
}

/// Exports functions of any signature; the arguments, whatever they are, stay unread.
macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            /// Not supported.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub(crate) extern "C" fn $name() -> super::Code {
                super::answer(stringify!($name), || say(stringify!($name)))
            }
        )*
    };
}

unsupported! {
    cuCtxCreate_v3 cuCtxCreate_v4 cuCtxEnablePeerAccess cuCtxDisablePeerAccess
    cuMemAllocPitch_v2 cuMemPrefetchAsync cuMemPrefetchAsync_v2 cuMemAdvise cuMemAdvise_v2
    cuMemcpyPeer cuMemcpyPeerAsync
    cuMemcpy2D_v2 cuMemcpy2DAsync_v2 cuMemcpy3D_v2 cuMemcpy3DAsync_v2 cuMemsetD2D8_v2
    cuMemsetD2D32_v2
    cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute cuDeviceSetMemPool
    cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess
    cuImportExternalMemory cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer
    cuStreamBatchMemOp cuStreamBatchMemOp_v2 cuStreamUpdateCaptureDependencies
    cuStreamBeginCaptureToGraph
    cuGraphCreate cuGraphAddKernelNode_v2 cuGraphAddMemcpyNode cuGraphAddMemsetNode
    cuGraphAddDependencies cuGraphClone
    cuGraphExecUpdate_v2 cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
    cuLibraryLoadData cuLibraryUnload cuLibraryGetKernel cuKernelGetFunction
    cuLinkCreate_v2 cuLinkAddData_v2 cuLinkComplete cuLinkDestroy
    cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialClusterSize
    cuOccupancyMaxPotentialBlockSizeWithFlags cuIpcGetMemHandle cuIpcOpenMemHandle_v2
    cuGetProcAddress cuGetProcAddress_v2 cuGetExportTable
}
