//! Wrong calls: a status and a reason, and nothing is changed.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trail_rt::engine::*;
use trail_rt::event::{TrailEvent, TrailEventKind, TrailFinishReason};
use trail_rt::probe::*;
use trail_rt::request::*;
use trail_rt::scheduler::*;
use trail_rt::status::{TrailStatus, trail_last_error, trail_version};
use trail_rt::tracker::*;

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
    refused(status, "--no-such-option");
    assert!(none.is_null());
    let (status, _) = engine(&["--probe", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    assert_eq!(status, TrailStatus::Model, "{}", reason());
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
        refused(trail_engine_submit(engine, &options, &mut request), "size of options is 8");
        assert!(request.is_null());
        let text = c"one two three".as_ptr();
        let mut tokens = [u32::MAX; 2];
        let encode = trail_engine_encode(engine, text, false, &mut tokens[0], 2, null_mut());
        refused(encode, "num_tokens is NULL");
        assert_eq!(tokens, [u32::MAX; 2]);
        assert!(!trail_engine_has_failed(engine) && trail_engine_has_failed(null()));
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

unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the counter of the test below.
    unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_closed_request_notifies_no_more() {
    let (status, engine) = engine(&[]);
    assert_eq!(status, TrailStatus::Ok, "{}", reason());
    let notified = AtomicUsize::new(0);
    let prompt = [1_u32, 2];
    let options = TrailRequestOptions {
        prompt: prompt.as_ptr(),
        num_prompt: 2,
        max_tokens: 400,
        ignore_eos: true,
        notify: Some(count),
        notify_data: (&raw const notified).cast_mut().cast(),
        ..TrailRequestOptions::default()
    };
    let mut info = TrailEngineInfo::default();
    // SAFETY: handles, values and room of this function, which outlive their use.
    unsafe {
        for _ in 0..10 {
            let (mut request, mut event) = (null_mut(), std::mem::zeroed::<TrailEvent>());
            assert_eq!(trail_engine_submit(engine, &options, &mut request), TrailStatus::Ok);
            assert_eq!(trail_request_poll(request, 10_000, &mut event), TrailStatus::Ok);
            trail_request_close(request);
            let before = notified.load(Ordering::SeqCst);
            info.num_unfinished = 1;
            while info.num_unfinished > 0 {
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(trail_engine_info(engine, &mut info), TrailStatus::Ok);
            }
            assert_eq!(notified.load(Ordering::SeqCst), before);
        }
        assert!(notified.load(Ordering::SeqCst) > 0);
        trail_engine_close(engine);
    }
}

#[test]
fn a_tracker_refuses_what_it_cannot_read_and_observes_nothing_then() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/probe.safetensors");
    let path = CString::new(path).expect("no zero byte");
    let (mut probe, mut tracker) = (null_mut(), null_mut());
    let (mut first, mut again) = (TrailEstimate::default(), TrailEstimate::default());
    // SAFETY: handles of this test, values and room of this function, and null.
    unsafe {
        assert_eq!(trail_probe_open(path.as_ptr(), &mut probe), TrailStatus::Ok, "{}", reason());
        for places in [0, 1 << 40] {
            refused(trail_tracker_open(probe, places, &mut tracker), "give 1 to 1048576");
        }
        assert_eq!(trail_tracker_open(probe, 1, &mut tracker), TrailStatus::Ok);
        let mut row = vec![0.5; trail_probe_width(probe)];
        let observe = |tracker, generated, row: &[f32], to: *mut TrailEstimate| {
            trail_tracker_observe(tracker, 0, generated, row.as_ptr(), to)
        };
        assert_eq!(observe(tracker, 1, &row, &mut first), TrailStatus::Ok);
        refused(observe(tracker, 90, &row, null_mut()), "estimate is NULL");
        let known = row[3];
        row[3] = f32::NAN;
        refused(observe(tracker, 90, &row, &mut again), "NaN or infinity");
        let mut alone = 7.0;
        let predict = trail_probe_predict(probe, row.as_ptr(), 1, &1, &mut alone);
        refused(predict, "row 0 of the activations has NaN");
        assert_eq!(alone, 7.0);
        row[3] = known;
        // One without new tokens gives the estimate that there is.
        assert_eq!(observe(tracker, 1, &row, &mut again), TrailStatus::Ok);
        assert_eq!((again.remaining, again.p50), (first.remaining, first.p50));
        trail_tracker_close(tracker);
        trail_probe_close(probe);
        assert_eq!(CStr::from_ptr(trail_version()).to_str(), Ok(env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn a_scheduler_refuses_what_does_not_fit() {
    // SAFETY: handles of this test, values and room of this function, and null.
    unsafe {
        let mut options = std::mem::zeroed::<TrailSchedulerOptions>();
        let mut scheduler: *mut TrailScheduler = null_mut();
        let open = trail_scheduler_open(c"fcfs".as_ptr(), &options, &mut scheduler);
        refused(open, "size of options is 0");
        let size = size_of::<TrailSchedulerOptions>();
        // A caller of an older header has less room.
        refused(trail_scheduler_options_default(&mut options, size - 4), "size of options is");
        assert_eq!(options.max_running, 0);
        assert_eq!(trail_scheduler_options_default(&mut options, size), TrailStatus::Ok);
        refused(trail_scheduler_open(null(), &options, &mut scheduler), "policy is NULL");
        let open = trail_scheduler_open(c"best".as_ptr(), &options, &mut scheduler);
        refused(open, "unknown policy 'best'");
        let open = trail_scheduler_open(c"oracle".as_ptr(), &options, &mut scheduler);
        refused(open, "'oracle' ranks by true lengths");
        let open = trail_scheduler_open(c"trail:0.8".as_ptr(), &options, &mut scheduler);
        assert_eq!(open, TrailStatus::Ok);
        refused(trail_scheduler_advance(scheduler), "plan first");
        let mut new = std::mem::zeroed::<TrailNewRequest>();
        let size = size_of::<TrailNewRequest>();
        refused(trail_new_request_default(&mut new, size + 8), "size of request is");
        assert_eq!(new.predicted_length, 0.0);
        assert_eq!(trail_new_request_default(&mut new, size), TrailStatus::Ok);
        let mut number = u64::MAX;
        refused(trail_scheduler_submit(scheduler, &new, &mut number), "prompt is empty");
        assert_eq!(number, u64::MAX);
        (new.prompt_tokens, new.max_tokens) = (4, 4);
        for (wrong, says) in [(f32::NAN, "predicted_length is NaN"), (0.0, "not above 0")] {
            new.predicted_length = wrong;
            refused(trail_scheduler_submit(scheduler, &new, &mut number), says);
        }
        new.predicted_length = -1.0;
        assert_eq!(trail_scheduler_submit(scheduler, &new, &mut number), TrailStatus::Ok);
        let mut plan = std::mem::zeroed::<TrailPlan>();
        refused(trail_scheduler_plan(scheduler, f64::INFINITY, &mut plan), "now is NaN or inf");
        assert_eq!(trail_scheduler_plan(scheduler, 0.0, &mut plan), TrailStatus::Ok);
        assert_eq!(trail_scheduler_advance(scheduler), TrailStatus::Ok);
        refused(trail_scheduler_predict(scheduler, number, f32::NAN), "remaining is NaN");
        assert_eq!(trail_scheduler_remaining(scheduler, number), -1.0);
        assert_eq!(trail_scheduler_predict(scheduler, number, 3.0), TrailStatus::Ok);
        assert_eq!(trail_scheduler_remaining(scheduler, number), 3.0);
        refused(trail_scheduler_accept(scheduler, number, 4), "can take 3 tokens more");
        assert_eq!(trail_scheduler_accept(scheduler, number, 1), TrailStatus::Ok);
        assert_eq!(trail_scheduler_remaining(scheduler, number), 2.0);
        assert_eq!(trail_scheduler_finish(scheduler, number), TrailStatus::Ok);
        refused(trail_scheduler_finish(scheduler, number), "there is no request 0");
        let (mut blocks, mut count) = (null(), 7);
        let status = trail_scheduler_blocks(scheduler, 1 << 40, &mut blocks, &mut count);
        refused(status, "there is no request");
        assert!(blocks.is_null() && count == 7);
        trail_scheduler_close(scheduler);
    }
}
