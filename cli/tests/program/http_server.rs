//! A small HTTP server for the tests of clients: it answers each request by a function.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request. The names of headers are in lower case.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// The path, with the query.
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// How many bytes of the body are sent before the connection breaks; all of them if `None`.
    pub breaks_after: Option<usize>,
    /// Whether the connection then stays open instead, and silent.
    pub is_silent: bool,
}

impl Answer {
    pub fn of(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), breaks_after: None, is_silent: false }
    }

    pub fn header(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }
}

/// A server on a port of this machine, for as long as the process lives.
pub struct Server {
    pub address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (seen, answer) = (requests.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        Self { address, requests }
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Answer) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut first = line.split_whitespace();
    let (method, path) = (first.next()?.to_string(), first.next()?.to_string());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_string());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let request = Request { method, path, headers, body };
    seen.lock().unwrap().push(request.clone());
    let Answer { status, headers, body, breaks_after, is_silent } = answer(&request);
    let mut stream = stream;
    let mut head = format!("HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    stream.write_all((head + "\r\n").as_bytes()).ok()?;
    stream.write_all(&body[..breaks_after.unwrap_or(body.len())]).ok()?;
    stream.flush().ok()?;
    if is_silent {
        // Until the client closes it.
        let _ = reader.read_to_end(&mut Vec::new());
    }
    Some(())
}
