//! A server and a client whose figures Prometheus can fetch. The server has its settings from TOML, and the client asks too much.
//!
//! `cargo run --release --example metrics --features metrics,config`, and meanwhile
//! `curl http://127.0.0.1:9090/metrics`. Another address may be given, and another time than ten seconds behind it.

use std::{env, error::Error, time::Duration};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use sluicegate::{Client, Server, client::MeasureCalls, server::ServerSettings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::{sleep, timeout},
};

const SETTINGS: &str = r#"
    max_concurrent_calls = 64
    wait_queue = { max_waiting = 128 }
    rate = { per_second = 200, burst = 400 }

    [methods."Reports/yearly"]
    max_concurrent_calls = 2
"#;

#[sluicegate::service]
trait Reports {
    async fn daily(&self);
    async fn yearly(&self);
}

struct Slow;

impl Reports for Slow {
    async fn daily(&self) {
        sleep(Duration::from_millis(10)).await;
    }

    async fn yearly(&self) {
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The recorder first: a server finds its histograms when it is built.
    let recorder = PrometheusBuilder::new().install_recorder()?;
    let server = Server::builder()
        .service(ReportsServer::new(Slow))
        .settings(ServerSettings::from_toml(SETTINGS)?)
        .measure_calls(true)
        .build()?;
    let bound = server.bind("127.0.0.1:0").await?;
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());
    tokio::spawn(handle.clone().export_metrics(Duration::from_secs(1)));

    let mut args = env::args().skip(1);
    let listener = TcpListener::bind(args.next().unwrap_or_else(|| "127.0.0.1:9090".to_owned())).await?;
    let seconds = args.next().map_or(Ok(10), |seconds| seconds.parse())?;
    println!("http://{}/metrics, for {seconds} s", listener.local_addr()?);
    let endpoint = tokio::spawn(answer_prometheus(listener, recorder.clone()));

    let client = Client::builder(address).interceptor(MeasureCalls).build();
    tokio::spawn(client.export_metrics("reports", Duration::from_secs(1)));
    let reports: ReportsClient = client.service();
    let demand = async {
        loop {
            for _ in 0..40 {
                let (daily, yearly) = (reports.clone(), reports.clone());
                tokio::spawn(async move { daily.daily().await });
                tokio::spawn(async move { yearly.yearly().await });
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let _: Result<(), _> = timeout(Duration::from_secs(seconds), demand).await;
    handle.shutdown();
    serving.await?;
    endpoint.abort();
    handle.record_metrics();
    for line in recorder.render().lines().filter(|line| line.starts_with("sluicegate_refused_total")) {
        println!("{line}");
    }
    Ok(())
}

/// As much of HTTP as Prometheus needs: one answer for each connection.
async fn answer_prometheus(listener: TcpListener, recorder: PrometheusHandle) {
    loop {
        let Ok((mut socket, _)) = listener.accept().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let body = recorder.render();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", body.len());
        let answer = async {
            // All of it: to close on what was not read would reset the connection, and the answer with it.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && request.len() < 8_192 && socket.read_buf(&mut request).await? > 0 {
            }
            socket.write_all(head.as_bytes()).await?;
            socket.write_all(body.as_bytes()).await
        };
        // Whoever is slow does not keep others from their figures for long.
        let _ = timeout(Duration::from_secs(1), answer).await;
    }
}
