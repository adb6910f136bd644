//! Scenes that a script plays, in virtual time and to their end.

use std::time::Duration;

use tokio::{
    runtime::{Builder, Handle},
    time::{sleep, timeout},
};

use crate::script::Script;

/// Connections whose one end does what a script says.
pub(crate) trait Scene: Sized {
    /// The scene as it begins; in a runtime.
    fn new(script: &mut Script<'_>) -> Self;

    /// The next thing that happens.
    async fn step(&mut self, script: &mut Script<'_>);

    /// Everybody leaves, and everything is back.
    async fn end(self);
}

/// Plays a scene by the script that `data` is.
pub(crate) fn play<S: Scene>(data: &[u8]) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let mut script = Script::new(data);
        let mut scene = S::new(&mut script);
        for _ in 0..MAX_STEPS {
            if script.is_over() {
                break;
            }
            scene.step(&mut script).await;
        }
        scene.end().await;
    });
}

/// Whether every task of this runtime ends in time.
pub(crate) async fn all_tasks_end() -> bool {
    let is_over = async {
        while Handle::current().metrics().num_alive_tasks() > 0 {
            sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(MAX_END, is_over).await.is_ok()
}

/// Longer than a service of the targets sleeps, and than any timeout of a server or client.
pub(crate) const MAX_END: Duration = Duration::from_secs(120);

const MAX_STEPS: usize = 500;
