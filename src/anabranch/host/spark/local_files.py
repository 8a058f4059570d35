"""Hadoop in the driver without the two costs that it adds to every micro-batch.

*Permissions of local files.* Without Hadoop's native library every file that it creates on a local disk gets its
permissions from a forked `chmod`. Spark creates a file per source and two more for every micro-batch, and waits for
each fork. `LocalFiles` sets the same permissions by a call of Java's own. It is compiled in the JVM by the compiler
that Spark has for its generated code, and takes the place of Hadoop's class for `file:`.

*Where settings come from.* Hadoop's settings, a thousand of them, travel to the tasks of every scan of files of every
micro-batch, each with the name of the file that it was read from, which Hadoop compresses name by name. Nothing but
messages for people reads those names, so they are forgotten.

Law: no file and no setting is other than it would be. Where anything is not as expected, all stays as it was.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

CLASS = "anabranch.LocalFiles"
SOURCE = """
package anabranch;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public final class LocalFiles extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission wanted) throws IOException {
        if (wanted.getStickyBit()) {
            super.setPermission(path, wanted);
            return;
        }
        String others = wanted.getGroupAction().SYMBOL + wanted.getOtherAction().SYMBOL;
        String letters = wanted.getUserAction().SYMBOL + others;
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(letters));
    }
}
"""
LOCAL = "file:///"
HADOOPS_OWN = "org.apache.hadoop.fs.RawLocalFileSystem"

_at_work = Lock()


def ease_hadoop(spark: SparkSession) -> None:
    """Takes both costs away, once for each JVM; streams that start later have the benefit."""
    with _at_work, suppress(Py4JError, TypeError):  # then micro-batches are as slow as they would be without
        java = spark.sparkContext._jsc
        assert java is not None
        settings = java.hadoopConfiguration()
        _forget_sources(settings)
        _set_permissions_in_process(spark, settings)


def _forget_sources(settings: JavaObject) -> None:
    field = settings.getClass().getDeclaredField("updatingResource")
    field.setAccessible(True)
    sources = field.get(settings)
    if sources is not None:
        sources.clear()


def _set_permissions_in_process(spark: SparkSession, settings: JavaObject) -> None:
    jvm: Any = spark.sparkContext._jvm
    if jvm.org.apache.hadoop.io.nativeio.NativeIO.isAvailable():
        return
    uri = jvm.java.net.URI.create(LOCAL)
    files = jvm.org.apache.hadoop.fs.FileSystem.get(uri, settings)
    field = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FilterFileSystem").getDeclaredField("fs")
    field.setAccessible(True)
    own = field.get(files)
    if own.getClass().getName() != HADOOPS_OWN:
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(own.getClass().getClassLoader())
    compiler.cook(SOURCE)
    raw = compiler.getClassLoader().loadClass(CLASS).newInstance()
    raw.initialize(uri, settings)
    field.set(files, raw)
