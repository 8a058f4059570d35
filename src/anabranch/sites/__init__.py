"""Deployments over sites: the operators of many queries run in several applications, connected by links.

`compile` turns a planned landscape into runnable operators, `local` runs a deployment in this process, `site` runs the
operators of a site on Spark, and `controller` plans, deploys and changes the deployment.
"""
