"""Tianshou: conversion to its batches and buffers and back, and a replay for its algorithms."""
