//! Serves a folder on a local port.

use std::fs;
use std::net::TcpListener;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tiny_http::{Header, Request, Response, Server};

use crate::Done;

/// Serves a folder until the process ends.
pub fn serve(folder: &Path, port: u16) -> Done {
    let server = listen(port)?;
    eprintln!("http://127.0.0.1:{port}/ (Ctrl-C ends)");
    answer(&server, folder, "");
    Ok(())
}

/// Serves a folder from another thread, with extra code at the beginning of the worker. Returns the port.
pub fn start(folder: &Path, worker_prefix: &'static str) -> Done<(Arc<Server>, u16)> {
    let server = Arc::new(listen(0)?);
    let address = server.server_addr().to_ip().ok_or("the server has no port")?;
    let (shared, folder) = (Arc::clone(&server), folder.to_owned());
    std::thread::spawn(move || answer(&shared, &folder, worker_prefix));
    Ok((server, address.port()))
}

/// The number of requests that are answered at the same time. A browser makes six.
const AT_ONCE: usize = 64;

/// The time that a client may read nothing.
const PATIENCE: Duration = Duration::from_secs(10);

fn listen(port: u16) -> Done<Server> {
    let failed = |error: &dyn std::fmt::Display| format!("port {port}: {error}; --port takes another");
    let listener = TcpListener::bind(("127.0.0.1", port)).map_err(|error| failed(&error))?;
    limit_writes(&listener);
    Server::from_listener(listener, None).map_err(|error| failed(&error))
}

/// Connections inherit the options of their listener.
#[cfg(unix)]
fn limit_writes(listener: &TcpListener) {
    let shared = listener.try_clone().map(std::os::fd::OwnedFd::from).map(std::net::TcpStream::from);
    // Without it, a client that reads nothing keeps one thread of many.
    drop(shared.and_then(|shared| shared.set_write_timeout(Some(PATIENCE))));
}

#[cfg(not(unix))]
fn limit_writes(_: &TcpListener) {}

/// Answers every request on a thread of its own: a client that does not read delays nobody else.
fn answer(server: &Server, folder: &Path, worker_prefix: &'static str) {
    let folder: Arc<Path> = folder.into();
    for request in server.incoming_requests() {
        // Every thread holds the folder's path. A request too many is dropped, which the client sees as an error.
        if Arc::strong_count(&folder) <= AT_ONCE {
            let folder = Arc::clone(&folder);
            std::thread::spawn(move || respond(request, &folder, worker_prefix));
        }
    }
}

fn respond(request: Request, folder: &Path, worker_prefix: &str) {
    let path = file_of(request.url());
    let content = path.as_ref().and_then(|path| fs::read(folder.join(path)).ok());
    let sent = match (path, content) {
        (Some(path), Some(mut content)) => {
            if path == Path::new("worker.js") {
                content.splice(0..0, worker_prefix.bytes());
            }
            let header = |name: &str, value: &str| Header::from_bytes(name, value).expect("a header of ASCII");
            let response = Response::from_data(content).with_header(header("Content-Type", media_type(&path)));
            // No caching: a rebuilt page must show at once.
            request.respond(response.with_header(header("Cache-Control", "no-store")))
        }
        _ => request.respond(Response::from_string("not found").with_status_code(404)),
    };
    // Errors do not matter: the browser is gone.
    drop(sent);
}

/// The file of an address; `None` for files outside the folder.
fn file_of(url: &str) -> Option<PathBuf> {
    let path = url.split(['?', '#']).next()?.trim_start_matches('/');
    let path = PathBuf::from(if path.is_empty() { "index.html" } else { path });
    path.components().all(|part| matches!(part, Component::Normal(_))).then_some(path)
}

fn media_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_do_not_read_delay_nobody() {
        use std::io::{Read, Write};
        use std::net::TcpStream;

        let folder = std::env::temp_dir().join(format!("meganeura-served-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // Larger than what the system buffers.
        fs::write(folder.join("large.bin"), vec![7; 32 << 20]).unwrap();
        fs::write(folder.join("index.html"), "a page").unwrap();
        let (_server, port) = start(&folder, "").unwrap();
        let ask = |file: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            write!(stream, "GET /{file} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
            stream
        };
        let deaf: Vec<_> = (0..4).map(|_| ask("large.bin")).collect();
        let mut page = String::new();
        ask("index.html").read_to_string(&mut page).unwrap();
        assert!(page.starts_with("HTTP/1.1 200") && page.ends_with("a page"), "{page}");
        drop(deaf);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_files_of_the_folder_are_served() {
        assert_eq!(file_of("/"), Some("index.html".into()));
        assert_eq!(file_of("/?device=cpu"), Some("index.html".into()));
        assert_eq!(file_of("/pkg/a.wasm#x"), Some("pkg/a.wasm".into()));
        for elsewhere in ["/../Cargo.toml", "/pkg/../../Cargo.toml", "//etc/../../passwd"] {
            assert_eq!(file_of(elsewhere), None, "{elsewhere}");
        }
        assert_eq!(media_type(Path::new("pkg/a.wasm")), "application/wasm");
    }
}
