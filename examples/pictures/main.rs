//! Draws the pictures of the documentation, from real runs, into `docs/`.
//!
//! ```text
//! cargo run --features operator --example pictures                    all pictures
//! cargo run --features operator --example pictures -- token-level     some of them
//! cargo run --features operator --example pictures -- --help          their names
//! ```
//!
//! Computed pictures are the same in every run: `tests/house/pictures.rs` compares them with the files. Measured pictures start
//! a `redis-server` of their own, and copies of this process; their note names the machine and the day. Those in `docs/`
//! come from a build with `--release`.

mod canvas;
mod concurrency;
mod false_positives;
mod fleet_limit;
mod measured;
mod mutex_timeline;
mod outage;
mod prefetch;
mod single_flight;
mod token_level;

use std::path::Path;
use std::time::Duration;

use self::canvas::Done;
use self::measured::Role;

struct Picture {
    name: &'static str,
    is_measured: bool,
    draw: fn() -> Done<String>,
}

const fn computed(name: &'static str, draw: fn() -> Done<String>) -> Picture {
    Picture {
        name,
        is_measured: false,
        draw,
    }
}

const fn measured(name: &'static str, draw: fn() -> Done<String>) -> Picture {
    Picture {
        name,
        is_measured: true,
        draw,
    }
}

const PICTURES: [Picture; 8] = [
    computed("token-level", token_level::draw),
    computed("false-positives", false_positives::draw),
    measured("fleet-limit", fleet_limit::draw),
    measured("concurrency", concurrency::draw),
    measured("mutex-timeline", mutex_timeline::draw),
    measured("single-flight", single_flight::draw),
    measured("outage", outage::draw),
    measured("prefetch", prefetch::draw),
];

fn main() -> Done {
    if let Some(role) = Role::of_this_process() {
        return play(role);
    }
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names.iter().any(|name| name.starts_with('-')) {
        return help();
    }
    if let Some(unknown) = names
        .iter()
        .find(|name| PICTURES.iter().all(|picture| picture.name != **name))
    {
        help()?;
        return Err(format!("no picture is called {unknown}").into());
    }
    let is_wanted =
        |picture: &&Picture| names.is_empty() || names.iter().any(|name| name == picture.name);
    let has_server = measured::has_server();
    for picture in PICTURES.iter().filter(is_wanted) {
        if picture.is_measured && !has_server {
            println!(
                "passed over {}: it is measured, and there is no redis-server",
                picture.name
            );
            continue;
        }
        let svg = (picture.draw)().map_err(|error| format!("{}: {error}", picture.name))?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("docs")
            .join(format!("{}.svg", picture.name));
        std::fs::write(&path, &svg)?;
        println!("docs/{}.svg: {} bytes", picture.name, svg.len());
    }
    Ok(())
}

fn help() -> Done {
    println!(
        "cargo run --features operator --example pictures [-- NAME…]\n\nDraws docs/NAME.svg, all without a name. The names:"
    );
    for picture in &PICTURES {
        println!(
            "  {:<16} {}",
            picture.name,
            if picture.is_measured {
                "measured, needs redis-server"
            } else {
                "computed"
            }
        );
    }
    Ok(())
}

/// What copies of this process do.
fn play(role: Role) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let play = async {
            match &*role.name {
                "fleet-limit" => fleet_limit::play(&role).await,
                "concurrency" => concurrency::play(&role).await,
                "mutex-timeline" => mutex_timeline::play(&role).await,
                "single-flight" => single_flight::play(role).await,
                unknown => Err(format!("no role is called {unknown}").into()),
            }
        };
        tokio::time::timeout(Duration::from_secs(30), play).await?
    })
}
