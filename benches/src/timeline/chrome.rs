//! The timeline in the Chrome trace event format, for chrome://tracing and Perfetto.

use serde_json::{Value, json};

use super::{Lane, Timeline};

/// Process ids in the trace.
const DEVICE: u32 = 1;
const HOST: u32 = 2;

/// One complete event (`"ph": "X"`) per span, times in microseconds from the first.
pub fn trace(timeline: &Timeline) -> Value {
    let spans = || timeline.lanes.iter().flat_map(|lane| &lane.spans);
    let first = spans().map(|span| span.begin).fold(0.0, f64::min);
    let mut events = Vec::new();
    for (pid, name) in [(DEVICE, timeline.run.device.as_str()), (HOST, "host")] {
        if timeline.lanes.iter().any(|lane| process(lane) == pid) {
            events.push(metadata("process_name", pid, 0, json!({ "name": name })));
            events.push(metadata("process_sort_index", pid, 0, json!({ "sort_index": pid })));
        }
    }
    for (tid, lane) in timeline.lanes.iter().enumerate() {
        let pid = process(lane);
        events.push(metadata("thread_name", pid, tid, json!({ "name": lane.name })));
        events.push(metadata("thread_sort_index", pid, tid, json!({ "sort_index": tid })));
        events.extend(lane.spans.iter().map(|span| {
            json!({
                "ph": "X",
                "name": span.kind.name(),
                "cat": lane.name,
                "pid": pid,
                "tid": tid,
                "ts": span.begin - first,
                "dur": span.end - span.begin,
                "args": { "step": span.step },
            })
        }));
    }
    let run = &timeline.run;
    json!({
        "displayTimeUnit": "ns",
        "traceEvents": events,
        "otherData": {
            "model": run.model,
            "device": run.device,
            "batch": run.batch,
            "waiting": run.waiting,
            "context": run.context,
            "step": timeline.step,
            "step_us": timeline.step_us,
            "clock_error_us": run.clock_error_us,
            "notes": run.notes,
        },
    })
}

fn process(lane: &Lane) -> u32 {
    if lane.on_device { DEVICE } else { HOST }
}

fn metadata(name: &str, pid: u32, tid: usize, args: Value) -> Value {
    json!({ "ph": "M", "name": name, "pid": pid, "tid": tid, "args": args })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::lanes::tests::example;

    #[test]
    fn every_span_is_a_complete_event_of_a_named_thread() {
        let timeline = example();
        let trace = trace(&timeline);
        let events = trace["traceEvents"].as_array().expect("events");
        let of = |ph: &'static str| events.iter().filter(move |event| event["ph"] == ph);
        let spans: usize = timeline.lanes.iter().map(|lane| lane.spans.len()).sum();
        assert!(spans > 0);
        assert_eq!(of("X").count(), spans);
        for event in of("X") {
            let time = |name: &str| event[name].as_f64().expect("microseconds");
            assert!(time("ts") >= 0.0 && time("dur") >= 0.0, "{event}");
            let same = |named: &&Value| {
                named["name"] == "thread_name"
                    && (&named["pid"], &named["tid"]) == (&event["pid"], &event["tid"])
            };
            let thread = of("M").find(same).expect("a named thread");
            assert_eq!(thread["args"]["name"], event["cat"]);
        }
        let processes: Vec<&Value> = of("M").filter(|e| e["name"] == "process_name").collect();
        assert_eq!(processes.len(), 2, "the device and the host");
        assert_eq!(trace["otherData"]["batch"], 3);
    }
}
