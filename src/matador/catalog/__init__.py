"""Describes what a program sends and handles: AsyncAPI documents, HTML pages, compatibility.

Works on values only: callers find the applications, queues and servers.
"""
