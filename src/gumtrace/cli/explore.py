"""`gumtrace explore`: the trace explorer, a page served on this machine."""

import argparse
import errno
import sys
import webbrowser
from contextlib import suppress

import torch

from gumtrace.explore.server import Server, warm_up

PORT = 8321
TRIES = 20  # ports from there on, where none was asked for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    places = f"where to serve (default: {PORT}, or the next that is free; 0: any that is free)"
    parser.add_argument("--port", type=_port, metavar="N", help=places)
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(args: argparse.Namespace) -> int:
    """0: stopped by Ctrl-C; 2: no port could be had."""
    ports = range(PORT, PORT + TRIES) if args.port is None else [args.port]
    server = None
    for port in ports:
        try:
            server = Server(port)
            break
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            print(f"gumtrace explore: port {port} cannot be used: {error.strerror}", file=sys.stderr)
    if server is None:
        print("gumtrace explore: give another --port, or 0 for any that is free", file=sys.stderr)
        return 2
    torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other
    with server:
        try:
            print("Compiling the kernels, the first time only:", end=" ", flush=True)
            for title in warm_up():
                print(title, end=" ... ", flush=True)
            print(f"done\nThe trace explorer is at {server.url} (Ctrl-C stops it)", flush=True)
            if not args.no_browser:
                webbrowser.open(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nStopped.")
    return 0


def _port(text: str) -> int:
    with suppress(ValueError):  # whose text would name this function
        if 0 <= (value := int(text)) <= 65535:
            return value
    raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 65535, got {text!r}")
