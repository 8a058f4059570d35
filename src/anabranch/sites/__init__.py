"""Deployments over sites: operators of many queries at work in several applications, joined by links.

`compile` turns a planned landscape into operators that can run, `local` runs one in this process, `site` runs those of
a site on Spark, `controller` plans, deploys and changes what runs.
"""
