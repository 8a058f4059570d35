"""Shortens the listings of Spark's file sources, so that their cost depends on new files and not on the whole folder.

Spark finds the new files of a stream by listing its whole folder, with five disk calls for each file, and ignores those
that it has already read. With this patch, a listing reads the names of the folder once, asks the source which names it
has seen, and reads the status of new files only. The source also lists its own log after each micro-batch to delete old
entries; that listing has only the oldest entries.

Invariant: a micro-batch has the same files as without the patch. Names are left out only while the thread holds the
lock of the listing source, and only names that this source would ignore. Every other listing is complete. Entries of a
log are left out only for the call that deletes old entries.

Limit: folders on local disks, without subfolders and without patterns in their paths. If a class of Spark is not as
expected, nothing is changed.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.internals.driver import java_array, jvm_of
from anabranch.spark.internals.patches import are_on
from anabranch.spark.internals.patches.local_files import compiled, local_files
from anabranch.spark.internals.queries import file_sources

OLDEST = 16
"""The number of log files in the listing by which a source deletes old ones; it writes one for each micro-batch."""
NEW_FILES, OLD_LOGS = "anabranch.NewFiles", "anabranch.OldLogs"
JAVA = """
package anabranch;

import java.lang.ref.WeakReference;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.paths.SparkPath;
import <source>;

public final class NewFiles extends LocalFiles.Listing {
    private final WeakReference source;
    private final Path folder;
    private Map before = new HashMap();
    private Map paths = new HashMap();

    public NewFiles(Object source, Path folder) {
        this.source = new WeakReference(source);
        this.folder = folder;
    }

    /** How many names the latest listing left out. */
    public int known() {
        return paths.size();
    }

    public boolean isOver() {
        return source.get() == null;
    }

    public boolean isAsking(Path listed) {
        FileStreamSource asking = (FileStreamSource) source.get();
        if (asking == null || !Thread.holdsLock(asking) || !listed.equals(folder)) {
            return false;
        }
        return asking.sourceHasMetadata().isDefined() && Boolean.FALSE.equals(asking.sourceHasMetadata().get());
    }

    public void begin(String[] names) {
        before = paths;
        paths = new HashMap(2 * names.length);
    }

    public boolean isKnown(String name) {
        SparkPath path = (SparkPath) before.get(name);
        return path != null && isSeen(name, path);
    }

    public boolean isKnown(String name, FileStatus status) {
        return isSeen(name, SparkPath.fromFileStatus(status));
    }

    private boolean isSeen(String name, SparkPath path) {
        FileStreamSource asking = (FileStreamSource) source.get();
        if (asking == null || asking.seenFiles().isNewFile(path, Long.MAX_VALUE)) {
            return false;
        }
        paths.put(name, path);
        return true;
    }
}
"""
JAVA_OF_LOGS = """
package anabranch;

import java.lang.ref.WeakReference;
import java.util.HashSet;
import java.util.Set;
import java.util.TreeMap;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

public final class OldLogs extends LocalFiles.Listing {
    private final WeakReference source;
    private final Path folder;
    private final int most;
    private Set oldest = new HashSet();
    private int times;

    public OldLogs(Object source, Path folder, Integer most) {
        this.source = new WeakReference(source);
        this.folder = folder;
        this.most = most.intValue();
    }

    /** How often the oldest files were shown. */
    public int times() {
        return times;
    }

    public boolean isOver() {
        return source.get() == null;
    }

    public boolean isAsking(Path listed) {
        Object asking = source.get();
        return asking != null && Thread.holdsLock(asking) && listed.equals(folder) && isDeleting();
    }

    private static boolean isDeleting() {
        StackTraceElement[] callers = Thread.currentThread().getStackTrace();
        for (int i = 0; i < callers.length; i++) {
            if (callers[i].getMethodName().equals("deleteExpiredLog")) {
                return true;
            }
        }
        return false;
    }

    public void begin(String[] names) {
        times++;
        TreeMap ordered = new TreeMap();
        for (int i = 0; i < names.length; i++) {
            int end = names[i].indexOf('.');
            try {
                Long batch = Long.valueOf(end < 0 ? names[i] : names[i].substring(0, end));
                if (ordered.size() < most || batch.compareTo((Long) ordered.lastKey()) < 0) {
                    ordered.put(batch, names[i]);
                }
                if (ordered.size() > most) {
                    ordered.pollLastEntry();
                }
            } catch (NumberFormatException other) {
                continue;
            }
        }
        oldest = new HashSet(ordered.values());
    }

    public boolean isKnown(String name) {
        return !oldest.contains(name);
    }

    public boolean isKnown(String name, FileStatus status) {
        return false;
    }
}
"""
_at_work = Lock()


def find_new_files(spark: SparkSession, running: StreamingQuery) -> list[tuple[Any, Any]]:
    """Makes the file sources of a running query list only new files, if the session allows patches.

    Returns the two listings of each source: that of its folder and that of its log.
    """
    listings = list[tuple[Any, Any]]()
    if not are_on(spark):
        return listings
    with _at_work, suppress(Py4JError, TypeError, AttributeError):
        files = local_files(spark)
        for source in [] if files is None else file_sources(running):
            java = JAVA.replace("<source>", source.getClass().getName())
            folder, log = _private(source, "qualifiedBasePath"), _private(source, "metadataLog").metadataPath()
            new = _made(spark, files, NEW_FILES, java, source, folder)
            old = _made(spark, files, OLD_LOGS, JAVA_OF_LOGS, source, log, OLDEST)
            cast(Any, files).add(new)
            cast(Any, files).add(old)
            listings.append((new, old))
    return listings


def _private(source: Any, name: str) -> Any:
    field = source.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(source)


def _made(spark: SparkSession, files: Any, name: str, java: str, *values: Any) -> Any:
    """Creates an object of a class that is compiled once for each JVM, because py4j confuses classes of one name."""
    classes = files.classes()
    if classes.get(name) is None:
        classes.put(name, compiled(spark, name, java, files))
    return (
        classes.get(name).getConstructors()[0].newInstance(java_array(spark, jvm_of(spark).java.lang.Object, *values))
    )
