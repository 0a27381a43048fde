//! Wrong calls: a status and a reason, and nothing is changed.

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use trail_rt::engine::{
    TrailEngineInfo, trail_engine_close, trail_engine_encode, trail_engine_info, trail_engine_open,
    trail_engine_submit,
};
use trail_rt::event::{TrailEventKind, TrailFinishReason};
use trail_rt::request::{
    TrailRequestOptions, trail_request_cancel, trail_request_close, trail_request_poll,
};
use trail_rt::scheduler::{
    TrailNewRequest, TrailSchedulerOptions, trail_new_request_default, trail_scheduler_advance,
    trail_scheduler_blocks, trail_scheduler_close, trail_scheduler_finish, trail_scheduler_open,
    trail_scheduler_options_default, trail_scheduler_submit,
};
use trail_rt::status::trail_last_error;
use trail_rt::{TrailEngine, TrailEvent, TrailScheduler, TrailStatus};

fn reason() -> String {
    // SAFETY: a text of this thread, which no call changes meanwhile.
    unsafe { CStr::from_ptr(trail_last_error()) }.to_string_lossy().into_owned()
}

fn refused(status: TrailStatus, why: &str) {
    assert_eq!(status, TrailStatus::Argument, "{}", reason());
    assert!(reason().contains(why) && !reason().contains('\n'), "{}", reason());
}

fn engine(more: &[&str]) -> (TrailStatus, *mut TrailEngine) {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo");
    let options = [&["--model", demo, "--threads", "1"], more].concat();
    let text = |text| CString::new(text).expect("no zero byte");
    let options: Vec<CString> = options.into_iter().map(text).collect();
    let pointers: Vec<_> = options.iter().map(|text| text.as_ptr()).collect();
    let mut engine = null_mut();
    // SAFETY: texts and room of this function.
    let status = unsafe { trail_engine_open(pointers.as_ptr(), pointers.len(), &mut engine) };
    (status, engine)
}

#[test]
fn an_engine_refuses_what_is_wrong_and_outlives_its_closing() {
    let (status, none) = engine(&["--no-such-option"]);
    assert_eq!(status, TrailStatus::Model);
    assert!(none.is_null() && reason().contains("--no-such-option"), "{}", reason());
    let (status, engine) = engine(&[]);
    assert_eq!(status, TrailStatus::Ok, "{}", reason());
    let (mut info, mut request) = (TrailEngineInfo::default(), null_mut());
    let mut options = TrailRequestOptions::default();
    let mut count = 0;
    // SAFETY: handles of this test, values and room of this function, and null.
    unsafe {
        refused(trail_engine_info(null(), &mut info), "engine is NULL");
        refused(trail_engine_info(engine, null_mut()), "info is NULL");
        refused(trail_engine_submit(engine, &options, &mut request), "prompt is empty");
        options.num_prompt = 2;
        refused(trail_engine_submit(engine, &options, &mut request), "prompt is NULL");
        (options.prompt, options.size) = ([1_u32, 2].as_ptr(), 8);
        refused(trail_engine_submit(engine, &options, &mut request), "size is 8");
        assert!(request.is_null());
        let text = c"one two three".as_ptr();
        let mut encode = |room| trail_engine_encode(engine, text, false, room, 0, &mut count);
        assert_eq!(encode(null_mut()), TrailStatus::Ok);
        assert!(count > 1);
        options.size = size_of::<TrailRequestOptions>();
        (options.max_tokens, options.ignore_eos) = (400, true);
        assert_eq!(trail_engine_submit(engine, &options, &mut request), TrailStatus::Ok);
        trail_engine_close(engine);
        let mut event = std::mem::zeroed::<TrailEvent>();
        assert_eq!(trail_request_poll(request, 10_000, &mut event), TrailStatus::Ok);
        assert_ne!(event.kind, TrailEventKind::None);
        assert_eq!(trail_request_cancel(request), TrailStatus::Ok);
        while event.kind != TrailEventKind::Finished {
            assert_eq!(trail_request_poll(request, 10_000, &mut event), TrailStatus::Ok);
        }
        assert_eq!(event.reason, TrailFinishReason::Cancelled);
        assert_eq!(trail_request_poll(request, 0, &mut event), TrailStatus::Ok);
        assert_eq!(event.kind, TrailEventKind::None);
        trail_request_close(request);
        trail_request_close(null_mut());
    }
}

#[test]
fn a_scheduler_refuses_what_does_not_fit() {
    // SAFETY: handles of this test, values and room of this function, and null.
    unsafe {
        let mut options = std::mem::zeroed::<TrailSchedulerOptions>();
        let mut scheduler: *mut TrailScheduler = null_mut();
        let open = trail_scheduler_open(c"fcfs".as_ptr(), &options, &mut scheduler);
        refused(open, "size is 0");
        assert_eq!(trail_scheduler_options_default(&mut options), TrailStatus::Ok);
        refused(trail_scheduler_open(null(), &options, &mut scheduler), "policy is NULL");
        let open = trail_scheduler_open(c"best".as_ptr(), &options, &mut scheduler);
        refused(open, "unknown policy 'best'");
        let open = trail_scheduler_open(c"trail:0.8".as_ptr(), &options, &mut scheduler);
        assert_eq!(open, TrailStatus::Ok);
        refused(trail_scheduler_advance(scheduler), "plan first");
        let mut new = std::mem::zeroed::<TrailNewRequest>();
        assert_eq!(trail_new_request_default(&mut new), TrailStatus::Ok);
        let mut number = u64::MAX;
        refused(trail_scheduler_submit(scheduler, &new, &mut number), "prompt is empty");
        assert_eq!(number, u64::MAX);
        (new.prompt_tokens, new.max_tokens) = (4, 4);
        assert_eq!(trail_scheduler_submit(scheduler, &new, &mut number), TrailStatus::Ok);
        assert_eq!(trail_scheduler_finish(scheduler, number), TrailStatus::Ok);
        refused(trail_scheduler_finish(scheduler, number), "there is no request 0");
        let (mut blocks, mut count) = (null(), 7);
        let status = trail_scheduler_blocks(scheduler, 1 << 40, &mut blocks, &mut count);
        refused(status, "there is no request");
        assert!(blocks.is_null() && count == 7);
        trail_scheduler_close(scheduler);
    }
}
