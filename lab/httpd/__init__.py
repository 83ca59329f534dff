"""A small HTTP/1.1 server that can be made to fail the way networks fail; lab/ec2 and lab/imds are handlers of it."""

from lab.httpd.messages import Listener, Request, Response
from lab.httpd.server import HttpServer

__all__ = ["HttpServer", "Listener", "Request", "Response"]
