//! Load reports: every 50 ms, and at once when a request comes or goes.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dynamo_runtime::component::Endpoint;
use dynamo_runtime::transports::event_plane::EventPublisher;
use trail_dynamo_proto::{LOAD_TOPIC, LoadReport, REPORT_PERIOD};

use crate::engine::TokenEngine;
use crate::load_book::LoadBook;

/// Least time between two reports, which bounds what a burst of arrivals sends.
const LEAST_GAP: Duration = Duration::from_millis(5);

/// Publishes until it is aborted. Without an event plane the routers count requests instead.
pub async fn publish(
    endpoint: Endpoint,
    worker_id: u64,
    engine: Arc<TokenEngine>,
    book: Arc<LoadBook>,
) {
    let namespace = endpoint.component().namespace().clone();
    let publisher = match EventPublisher::for_namespace(&namespace, LOAD_TOPIC).await {
        Ok(publisher) => publisher,
        Err(error) => {
            tracing::error!("no load reports, the event plane failed: {error:#}");
            return;
        }
    };
    tracing::info!("load reports of instance {worker_id}");
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut report = LoadReport {
        worker_id,
        epoch: since_1970.as_nanos() as u64,
        slots: engine.slots(),
        ..LoadReport::default()
    };
    loop {
        let (blocks, used) = engine.blocks();
        report.kv_free_blocks = blocks.saturating_sub(used);
        report.order = engine.order();
        report.pace = engine.pace();
        report.prompts = engine.prompts();
        report.seq += 1;
        book.fill(&mut report);
        if let Err(error) = publisher.publish(&report).await {
            tracing::warn!("a load report was not sent: {error:#}");
        }
        tokio::time::sleep(LEAST_GAP).await;
        let _ = tokio::time::timeout(REPORT_PERIOD - LEAST_GAP, book.changed.notified()).await;
    }
}
