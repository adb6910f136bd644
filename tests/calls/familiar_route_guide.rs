//! The route guide of gRPC, as tonic has it: what is at a point, what is within a rectangle, what a route was like, and
//! notes that travellers leave for each other.

use std::{collections::HashMap, error::Error, net::SocketAddr, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use sluicegate::{
    CallError, Client, Executed, ItemSender, Server, Status, Stream, Streaming, server::BoundServer, testing::InMemory,
};
use tokio::time::{Instant, sleep};

use crate::support::{assert_idle_soon, within};

/// In degrees, times ten million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Point {
    latitude: i32,
    longitude: i32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Rectangle {
    one: Point,
    other: Point,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Feature {
    name: String,
    location: Point,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RouteNote {
    location: Point,
    message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RouteSummary {
    points: u32,
    features: u32,
    metres: u32,
    seconds: u64,
}

#[sluicegate::service(package = "routeguide")]
trait RouteGuide {
    /// The feature at a point; it has no name if there is none.
    async fn get_feature(&self, point: Point) -> Result<Feature, Status>;
    /// All within a rectangle.
    async fn list_features(
        &self,
        area: Rectangle,
    ) -> Result<impl Stream<Item = Result<Feature, Status>> + Send, Status>;
    /// How long a route was, in every respect.
    async fn record_route(&self, route: Streaming<Point>) -> Result<RouteSummary, Status>;
    /// Leaves notes, and gives for each of them all that were left at that place.
    async fn route_chat(&self, notes: Streaming<RouteNote>, there: ItemSender<RouteNote>) -> Result<(), Status>;
}

struct Map(Vec<Feature>);

impl Map {
    fn at(&self, point: Point) -> Option<&Feature> {
        self.0.iter().find(|feature| feature.location == point)
    }
}

impl RouteGuide for Map {
    async fn get_feature(&self, point: Point) -> Result<Feature, Status> {
        Ok(self.at(point).cloned().unwrap_or(Feature { name: String::new(), location: point }))
    }

    async fn list_features(
        &self,
        area: Rectangle,
    ) -> Result<impl Stream<Item = Result<Feature, Status>> + Send, Status> {
        let within: Vec<_> = self.0.iter().filter(|feature| area.contains(feature.location)).cloned().map(Ok).collect();
        Ok(stream::iter(within))
    }

    async fn record_route(&self, mut route: Streaming<Point>) -> Result<RouteSummary, Status> {
        let (began, mut last, mut metres) = (Instant::now(), None, 0.0);
        let mut summary = RouteSummary::default();
        while let Some(point) = route.message().await? {
            summary.points += 1;
            summary.features += u32::from(self.at(point).is_some());
            metres += last.replace(point).map_or(0.0, |last| point.metres_to(last));
        }
        Ok(RouteSummary { metres: metres as u32, seconds: began.elapsed().as_secs(), ..summary })
    }

    async fn route_chat(
        &self,
        mut notes: Streaming<RouteNote>,
        mut there: ItemSender<RouteNote>,
    ) -> Result<(), Status> {
        let mut left: HashMap<Point, Vec<RouteNote>> = HashMap::new();
        while let Some(note) = notes.message().await? {
            let here = left.entry(note.location).or_default();
            here.push(note);
            for note in here {
                there.send(note.clone()).await?;
            }
        }
        Ok(())
    }
}

impl Rectangle {
    fn contains(self, point: Point) -> bool {
        let between = |value: i32, one: i32, other: i32| (one.min(other)..=one.max(other)).contains(&value);
        between(point.latitude, self.one.latitude, self.other.latitude)
            && between(point.longitude, self.one.longitude, self.other.longitude)
    }
}

impl Point {
    /// By the haversine of the angle between the two.
    fn metres_to(self, other: Self) -> f64 {
        let radians = |degrees: i32| (f64::from(degrees) / 1e7).to_radians();
        let half_sine = |one: i32, other: i32| ((radians(one) - radians(other)) / 2.0).sin().powi(2);
        let cosines = radians(self.latitude).cos() * radians(other.latitude).cos();
        let haversine = half_sine(self.latitude, other.latitude) + cosines * half_sine(self.longitude, other.longitude);
        2.0 * 6_371_000.0 * haversine.sqrt().asin()
    }
}

async fn server(map: Map) -> Result<BoundServer, Box<dyn Error>> {
    Ok(Server::builder().service(RouteGuideServer::new(map)).build()?.bind("127.0.0.1:0").await?)
}

async fn client(address: SocketAddr) -> Result<(), CallError> {
    let guide: RouteGuideClient = Client::new(address).service();
    assert_eq!(guide.get_feature(degrees(41, -74)).await?.name, "mill");
    list_features(&guide).await?;
    record_route(&guide).await?;
    route_chat(&guide).await
}

async fn list_features(guide: &RouteGuideClient) -> Result<(), CallError> {
    let area = Rectangle { one: degrees(1, 25), other: degrees(-1, -10) };
    let mut features = guide.list_features(area);
    let mut names = Vec::new();
    while let Some(feature) = features.message().await? {
        names.push(feature.name);
    }
    assert_eq!(names, ["lighthouse -1", "lighthouse 0", "lighthouse 1", "lighthouse 2"]);
    Ok(())
}

async fn record_route(guide: &RouteGuideClient) -> Result<(), CallError> {
    let summary = guide.record_route().send_all(stream::iter([degrees(0, 0), degrees(1, 0)])).await?;
    assert_eq!((summary.points, summary.features), (2, 1));
    Ok(())
}

async fn route_chat(guide: &RouteGuideClient) -> Result<(), CallError> {
    let note = RouteNote { location: degrees(1, 1), message: "nobody here".to_owned() };
    let notes: Vec<_> = guide.route_chat().send_all(stream::iter([note.clone()])).try_collect().await?;
    assert_eq!(notes, [note]);
    Ok(())
}

fn degrees(latitude: i32, longitude: i32) -> Point {
    Point { latitude: latitude * 10_000_000, longitude: longitude * 10_000_000 }
}

#[tokio::test]
async fn a_guide_on_a_socket_knows_points_areas_routes_and_notes() {
    let bound = server(map()).await.unwrap();
    let (address, handle) = (bound.local_addr(), bound.handle());
    let serving = tokio::spawn(bound.serve());
    within(client(address)).await.unwrap();
    assert_idle_soon(&handle).await;
    handle.shutdown();
    within(serving).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_at_no_feature_has_no_name() {
    let (server, guide) = in_memory();
    let nowhere = degrees(1, 1);
    assert_eq!(guide.get_feature(nowhere).await.unwrap(), Feature { name: String::new(), location: nowhere });
    drop(guide);
    server.assert_idle().await;
}

/// A lighthouse every ten degrees of the equator, and a mill.
fn map() -> Map {
    let lighthouse = |n| Feature { name: format!("lighthouse {n}"), location: degrees(0, 10 * n) };
    let mill = Feature { name: "mill".to_owned(), location: degrees(41, -74) };
    Map((-17..18).map(lighthouse).chain([mill]).collect())
}

fn in_memory() -> (InMemory, RouteGuideClient) {
    let server = InMemory::new(Server::builder().service(RouteGuideServer::new(map())).build().unwrap());
    let guide = server.client().service();
    (server, guide)
}

#[tokio::test(start_paused = true)]
async fn who_has_seen_enough_of_an_area_drops_the_stream() {
    let (server, guide) = in_memory();
    let everything = Rectangle { one: degrees(-90, -180), other: degrees(90, 180) };
    assert_eq!(guide.list_features(everything).count().await, 36);
    let mut features = guide.list_features(everything);
    assert_eq!(features.message().await.unwrap().unwrap().name, "lighthouse -17");
    drop((features, guide));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_route_is_summed_up_when_it_ends() {
    let (server, guide) = in_memory();
    let (mut route, summary) = guide.record_route().open().await.unwrap();
    for point in [degrees(0, 0), degrees(1, 0), degrees(0, 0), degrees(0, 10)] {
        route.send(point).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    route.end();
    // Twelve degrees, 111.195 km each.
    let expected = RouteSummary { points: 4, features: 3, metres: 1_334_339, seconds: 4 };
    assert_eq!(summary.await.unwrap(), expected);
    let nothing = guide.record_route().send_all(stream::empty()).await.unwrap();
    assert_eq!(nothing, RouteSummary::default());
    drop(guide);
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_note_brings_back_all_that_were_left_at_its_place() {
    let (server, guide) = in_memory();
    let (mut notes, mut there) = guide.route_chat().open().await.unwrap();
    let note = |at, message: &str| RouteNote { location: degrees(at, 0), message: message.to_owned() };
    for (left, expected) in [
        (note(1, "first"), vec!["first"]),
        (note(2, "elsewhere"), vec!["elsewhere"]),
        (note(1, "second"), vec!["first", "second"]),
    ] {
        notes.send(left).await.unwrap();
        for message in expected {
            assert_eq!(there.message().await.unwrap().unwrap().message, message);
        }
    }
    notes.end();
    assert_eq!(there.message().await.unwrap(), None);
    drop((there, guide));
    server.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_guide_with_one_traveller_turns_the_next_away_until_the_chat_is_over() {
    let server = Server::builder().service(RouteGuideServer::new(map())).max_concurrent_calls(1).build().unwrap();
    let server = InMemory::new(server);
    let guide: RouteGuideClient = server.client().service();
    let (notes, mut there) = guide.route_chat().open().await.unwrap();
    let error = guide.get_feature(degrees(0, 0)).await.unwrap_err();
    assert_eq!(error.refused().unwrap().limit(), Some("global"));
    assert_eq!(error.executed(), Executed::Never);
    notes.end();
    assert_eq!(there.message().await.unwrap(), None);
    assert_eq!(guide.get_feature(degrees(0, 0)).await.unwrap().name, "lighthouse 0");
    drop((there, guide));
    server.assert_idle().await;
}
