"""Describes what a program sends and handles: AsyncAPI documents, HTML pages, compatibility.

Knows only values: which applications, queues and servers there are is found by its callers.
"""
