//! Serves a folder on a local port.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use tiny_http::{Header, Response, Server};

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

fn listen(port: u16) -> Done<Server> {
    Server::http(("127.0.0.1", port)).map_err(|error| format!("port {port}: {error}; --port takes another"))
}

fn answer(server: &Server, folder: &Path, worker_prefix: &str) {
    for request in server.incoming_requests() {
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
